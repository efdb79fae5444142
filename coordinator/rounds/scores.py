"""Decide which scores of a round are taken, how often they may change, and what is worth an event.

Scores come after a round as well as in it, so each bound is for good: the newest rounds alone take them, a
client changes them a few times, and what was sent before is not written again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.db.clock import clock
from coordinator.db.engine import run
from coordinator.db.tables.federations import FederationRow, ParticipationRow, RoundRow, ScoresRow
from coordinator.errors import NotFound, NotJoined, RoundClosed

OPEN_ROUNDS = 2
"""How many published rounds take scores, the newest; what came after them takes some as well."""

MOST_CHANGES = 10
"""How often a client may replace its scores of a round."""

_PLACE = (
    select(
        clock(),
        RoundRow.id,
        FederationRow.state,
        ParticipationRow.client_id,
        ScoresRow.scores,
        ScoresRow.changes,
    )
    .join(FederationRow, FederationRow.id == RoundRow.federation_id)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .outerjoin(ScoresRow, (ScoresRow.round_id == RoundRow.id) & (ScoresRow.client_id == bindparam("client")))
    .where(RoundRow.federation_id == bindparam("fid"), RoundRow.number == bindparam("number"))
)
_OLDEST_OPEN = (
    select(RoundRow.number)
    .where(RoundRow.federation_id == bindparam("fid"), RoundRow.state == "published")
    .order_by(RoundRow.number.desc())
    .offset(OPEN_ROUNDS - 1)
    .limit(1)
)
_KEEP = {
    kind: start.on_conflict_do_update(
        index_elements=[ScoresRow.round_id, ScoresRow.client_id],
        set_={
            "scores": start.excluded.scores,
            "received_at": start.excluded.received_at,
            "changes": start.excluded.changes,
        },
    )
    for kind, start in (("sqlite", sqlite.insert(ScoresRow)), ("postgresql", postgresql.insert(ScoresRow)))
}


def are_taken(session: Session, fid: str, number: int) -> bool:
    """Whether the round of this number still takes scores."""
    oldest = run(session, _OLDEST_OPEN, {"fid": fid}).scalar()
    return oldest is None or number >= oldest


def keep(session: Session, fid: str, number: int, client_id: str, scores: dict[str, Any]) -> bool:
    """Keep a client's scores of a round, the federation held; the last ones win.

    Returns:
        Whether anything is different now: the same scores again write nothing.

    Raises:
        NotFound: there is no such round.
        NotJoined: the client did not take part in it.
        RoundClosed: newer rounds take scores instead, or these were changed too often.
    """
    place = run(session, _PLACE, {"fid": fid, "number": number, "client": client_id}).first()
    if place is None:
        raise NotFound
    moment, round_id, state, joined, stored, changes = place
    if joined is None:
        raise NotJoined
    if stored == scores:
        return False
    if not are_taken(session, fid, number):
        raise RoundClosed(f"scores are taken of the newest {OPEN_ROUNDS} published rounds and of later ones")
    if stored is not None and state == "finished":
        raise RoundClosed("the federation is finished, and has this client's scores of the round")
    if stored is not None and changes >= MOST_CHANGES:
        raise RoundClosed(f"these scores were replaced {MOST_CHANGES} times, and stay as they are")
    row = {
        "round_id": round_id,
        "client_id": client_id,
        "scores": scores,
        "received_at": moment,
        "changes": changes + 1 if stored is not None else 0,
    }
    run(session, _KEEP[session.get_bind().dialect.name], row)
    return True
