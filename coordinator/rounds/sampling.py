"""Draw the clients that may take part in a round, if the plan samples them (`rounds.sample`).

The lowest tickets are drawn, so that the same clients, joins and plan give the same draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import ClientRow, ParticipationRow
from schemas.maths.sampling import in_order, places_of
from schemas.messages.federations import FederationPlan

WILLING: Final = timedelta(minutes=5)
"""How long after its last request a client counts as willing: agents that wait ask twice a minute."""

_IS_ASKING = ClientRow.id == bindparam("client")
_IS_UNSEEN = or_(ClientRow.last_seen_at.is_(None), ClientRow.last_seen_at < bindparam("since"))
_CLIENTS = (
    select(ClientRow.id, ClientRow.name, ClientRow.last_seen_at, ParticipationRow.client_id)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.client_id == ClientRow.id) & (ParticipationRow.round_id == bindparam("round")),
    )
    .where(ClientRow.federation_id == bindparam("federation_id"), ClientRow.state == "enrolled")
)


_COUNTS = (
    select(
        func.count(ParticipationRow.client_id).label("joined"),
        func.count()
        .filter(or_(ParticipationRow.client_id.is_not(None), ClientRow.last_seen_at >= bindparam("since")))
        .label("willing"),
        func.count().filter(_IS_ASKING, ParticipationRow.client_id.is_not(None)).label("has_joined"),
        func.count().filter(_IS_ASKING, ParticipationRow.client_id.is_(None), _IS_UNSEEN).label("is_back"),
    )
    .select_from(ClientRow)
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.client_id == ClientRow.id) & (ParticipationRow.round_id == bindparam("round")),
    )
    .where(ClientRow.federation_id == bindparam("federation_id"), ClientRow.state == "enrolled")
)


@dataclass(frozen=True, slots=True)
class Draw:
    """The clients that may take part in a round: those that have joined, then the next tickets.

    Attributes:
        places: the number of clients that the plan asks for.
        drawn: their ids, at most `places`, unless more had joined before some were revoked or left.
        names: their names, in the same order.
    """

    places: int
    drawn: tuple[str, ...]
    names: tuple[str, ...]


def is_drawn(
    session: Session,
    federation_id: str,
    round_id: int,
    round_number: int,
    plan: FederationPlan,
    now: datetime,
    client: str,
) -> bool:
    """Whether `draw` for this client would draw it."""
    place = {"federation_id": federation_id, "round": round_id, "client": client, "since": now - WILLING}
    joined, willing, has_joined, is_back = run(session, _COUNTS, place).one()
    if has_joined:
        return True
    # All places are taken: one query of counts answers, and no tickets are compared.
    if joined >= places_of(plan.rounds, willing + is_back):
        return False
    return client in draw(session, federation_id, round_id, round_number, plan, now, client).drawn


def draw(
    session: Session,
    federation_id: str,
    round_id: int,
    round_number: int,
    plan: FederationPlan,
    now: datetime,
    requester: str | None = None,
) -> Draw:
    """Draw the clients of a round that accepts updates; `requester` is a client that polls right now."""
    rows = run(session, _CLIENTS, {"federation_id": federation_id, "round": round_id}).all()
    names = {client: name for client, name, _, _ in rows}
    joined = {client for client, _, _, participation in rows if participation is not None}
    willing = joined | {
        client
        for client, _, last_seen, _ in rows
        if client == requester or (last_seen is not None and last_seen >= now - WILLING)
    }
    client_by_name = {names[client]: client for client in willing}
    order = [client_by_name[name] for name in in_order(plan.training.seed, round_number, client_by_name)]
    places = places_of(plan.rounds, len(willing))
    joined_first = [client for client in order if client in joined]
    undrawn = [client for client in order if client not in joined]
    # A client that has joined keeps its place, even if more clients are willing now.
    drawn = [*joined_first, *undrawn[: max(0, places - len(joined_first))]]
    return Draw(places, tuple(drawn), tuple(names[client] for client in drawn))
