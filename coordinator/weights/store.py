"""Which stored bytes a client is served in a round."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from coordinator.downloads import Stored
from coordinator.errors import NotFound, NotJoined
from coordinator.federations.store import federation
from coordinator.rounds import bases
from coordinator.rounds import store as rounds
from coordinator.tables import WeightsRow


@dataclass(frozen=True, slots=True)
class Served:
    """The weights a client may read, and the round whose traffic they are (None = after the end)."""

    weights: WeightsRow
    round_id: int | None


def served(session: Session, fid: str, client_id: str, number: int) -> Served:
    """Which weights does a client read in round `number`, or, when all is over, in the round after the last?

    Raises:
        NotFound: there is no such round, or nothing was ever made for this client.
        NotJoined: the client does not take part in it.
    """
    _, last = rounds.published(session, fid)
    if number == last + 1 and federation(session, fid).state == "finished":
        return Served(_or_not_found(bases.newest(session, client_id)), None)
    row = rounds.numbered(session, fid, number)
    if rounds.participation(session, row.id, client_id) is None:
        raise NotJoined
    return Served(_or_not_found(bases.newest(session, client_id, number)), row.id)


def give(session: Session, fid: str, client_id: str, number: int, stored: Stored, moment: datetime) -> None:
    """Let a client be served these bytes from the start of round `number` on."""
    session.add(
        WeightsRow(
            federation_id=fid,
            round_number=number,
            client_id=client_id,
            payload_id=stored.payload_id,
            head=stored.head,
            begin=stored.begin,
            digest=stored.digest,
            bytes=stored.size,
            created_at=moment,
        )
    )


def _or_not_found(row: WeightsRow | None) -> WeightsRow:
    if row is None:
        raise NotFound
    return row
