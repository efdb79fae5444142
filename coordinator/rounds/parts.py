"""The rows of who takes part in which round, and of what its part costs. One function per question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.database import run
from coordinator.enrolment.store import insert_new
from coordinator.errors import NotFound, NotJoined
from coordinator.strategies.base import Signature
from coordinator.tables import ClientRow, ParticipationRow, RoundRow, ScoresRow, SignatureRow
from coordinator.times import clock

_OF_CLIENT = (ParticipationRow.round_id == bindparam("round")) & (
    ParticipationRow.client_id == bindparam("client")
)
_BYTES = {
    "bytes_up": ParticipationRow.bytes_up + bindparam("up"),
    "bytes_down": ParticipationRow.bytes_down + bindparam("down"),
}
_PART = select(ParticipationRow.state, ParticipationRow.base_digest).where(_OF_CLIENT)
_BEFORE = (
    select(ParticipationRow.state)
    .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
    .where(
        RoundRow.federation_id == bindparam("fid"),
        RoundRow.number < bindparam("number"),
        ParticipationRow.client_id == bindparam("client"),
    )
    .order_by(RoundRow.number.desc())
    .limit(2)
)
_SIGN = insert(SignatureRow)
_MARK = update(ParticipationRow).where(_OF_CLIENT).values(state=bindparam("now"))
_ARRIVE = update(ParticipationRow).where(_OF_CLIENT).values(state="arrived", **_BYTES)
_COUNT = update(ParticipationRow).where(_OF_CLIENT).values(**_BYTES)
_COUNT_ALTOGETHER = (
    update(ClientRow)
    .where(ClientRow.id == bindparam("client"))
    .values(
        bytes_up=ClientRow.bytes_up + bindparam("up"), bytes_down=ClientRow.bytes_down + bindparam("down")
    )
)


_PLACE = (
    select(clock(), RoundRow.id, ParticipationRow.client_id)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .where(RoundRow.federation_id == bindparam("fid"), RoundRow.number == bindparam("number"))
)
_SCORE = {
    kind: start.on_conflict_do_update(
        index_elements=[ScoresRow.round_id, ScoresRow.client_id],
        set_={"scores": start.excluded.scores, "received_at": start.excluded.received_at},
    )
    for kind, start in (("sqlite", sqlite.insert(ScoresRow)), ("postgresql", postgresql.insert(ScoresRow)))
}


@dataclass(frozen=True, slots=True)
class Taking:
    """A client's part in a round: how it went, and the name of the weights it was told to start from."""

    state: str
    base_digest: str


def of(session: Session, round_id: int, client_id: str) -> Taking | None:
    """Did this client join?"""
    found = run(session, _PART, {"round": round_id, "client": client_id}).first()
    return Taking(*found) if found is not None else None


def before(session: Session, row: RoundRow, client_id: str) -> list[str]:
    """How did a client's last two parts in rounds before this one go, the newest first?"""
    which = {"fid": row.federation_id, "number": row.number, "client": client_id}
    return list(run(session, _BEFORE, which).scalars())


def join(
    session: Session,
    round_id: int,
    client_id: str,
    base_digest: str,
    moment: datetime,
    *,
    is_waited_for: bool = True,
) -> None:
    """Let a client take part, if it does not yet."""
    insert_new(
        session,
        ParticipationRow,
        {
            "round_id": round_id,
            "client_id": client_id,
            "state": "joined",
            "joined_at": moment,
            "base_digest": base_digest,
            "bytes_up": 0,
            "bytes_down": 0,
            "reject_reason": None,
            "is_waited_for": is_waited_for,
        },
    )


def keep_signature(session: Session, row: RoundRow, client_id: str, origin: str, sent: Signature) -> None:
    """Keep a client's signature; `origin` is `join` or `update`."""
    run(
        session,
        _SIGN,
        {
            "federation_id": row.federation_id,
            "round_id": row.id,
            "round_number": row.number,
            "client_id": client_id,
            "origin": origin,
            "vector": sent.vector.astype("<f4").tobytes(),
            "reliability": sent.reliability,
            "epsilon": sent.epsilon,
        },
    )


def count_bytes(
    session: Session, round_id: int | None, client_id: str, *, up: int = 0, down: int = 0
) -> None:
    """Add encoded bytes to what a client sent and was sent, altogether and in a round it takes part in."""
    counted = {"client": client_id, "up": up, "down": down}
    if round_id is not None:
        run(session, _COUNT, {"round": round_id, **counted})
    run(session, _COUNT_ALTOGETHER, counted)


def arrive(session: Session, round_id: int, sizes: Mapping[str, int]) -> None:
    """Say that these clients' updates are in, and count the encoded bytes of each."""
    counted = [{"client": client, "up": sizes[client], "down": 0} for client in sorted(sizes)]
    run(session, _ARRIVE, [{"round": round_id, **one} for one in counted])
    run(session, _COUNT_ALTOGETHER, counted)


def mark(session: Session, round_id: int, client_id: str, state: str) -> None:
    """Say how a client's part in a round went."""
    run(session, _MARK, {"round": round_id, "client": client_id, "now": state})


def keep_scores(session: Session, fid: str, number: int, client_id: str, scores: dict[str, Any]) -> None:
    """Keep a client's scores of the round of this number; the last ones win.

    Raises:
        NotFound: there is no such round.
        NotJoined: the client did not take part in it.
    """
    found = run(session, _PLACE, {"fid": fid, "number": number, "client": client_id}).first()
    if found is None:
        raise NotFound
    moment, round_id, joined = found
    if joined is None:
        raise NotJoined
    kept = {"round_id": round_id, "client_id": client_id, "scores": scores, "received_at": moment}
    run(session, _SCORE[session.get_bind().dialect.name], kept)
