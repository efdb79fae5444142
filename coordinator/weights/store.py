"""Which stored bytes a client is served in a round."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from coordinator.database import run
from coordinator.downloads import Stored
from coordinator.errors import NotFound, NotJoined
from coordinator.rounds import bases
from coordinator.rounds import store as rounds
from coordinator.rounds.bases import Given
from coordinator.tables import FederationRow, ParticipationRow, RoundRow, WeightsRow

_PLACE = (
    select(FederationRow.state, RoundRow.id, ParticipationRow.client_id)
    .outerjoin(
        RoundRow, (RoundRow.federation_id == FederationRow.id) & (RoundRow.number == bindparam("number"))
    )
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .where(FederationRow.id == bindparam("fid"))
)
_GIVE = insert(WeightsRow)


@dataclass(frozen=True, slots=True)
class Served:
    """The weights a client may read, and the round whose traffic they are (None = after the end)."""

    weights: Given
    round_id: int | None


def served(session: Session, fid: str, client_id: str, number: int) -> Served:
    """Which weights does a client read in round `number`, or, when all is over, in the round after the last?

    Raises:
        NotFound: there is no such round, or nothing was ever made for this client.
        NotJoined: the client does not take part in it.
    """
    found = run(session, _PLACE, {"fid": fid, "number": number, "client": client_id}).first()
    if found is None:
        raise NotFound
    state, round_id, joined = found
    if state == "finished" and number == rounds.published(session, fid)[1] + 1:
        return Served(_or_not_found(bases.newest(session, client_id)), None)
    if round_id is None:
        raise NotFound
    if joined is None:
        raise NotJoined
    return Served(_or_not_found(bases.newest(session, client_id, number)), round_id)


def give(session: Session, fid: str, client_id: str, number: int, stored: Stored, moment: datetime) -> None:
    """Let a client be served these bytes from the start of round `number` on."""
    run(
        session,
        _GIVE,
        {
            "federation_id": fid,
            "round_number": number,
            "client_id": client_id,
            "payload_id": stored.payload_id,
            "head": stored.head,
            "begin": stored.begin,
            "digest": stored.digest,
            "bytes": stored.size,
            "created_at": moment,
        },
    )


def _or_not_found(given: Given | None) -> Given:
    if given is None:
        raise NotFound
    return given
