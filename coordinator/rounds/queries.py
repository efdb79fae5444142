"""Read-only queries behind the views of rounds and the long poll."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, select
from sqlalchemy.orm import Session, aliased

from coordinator.db.engine import run
from coordinator.db.tables.federations import (
    ClientRow,
    EventRow,
    FederationRow,
    ParticipationRow,
    ProgressRow,
    RelevanceRow,
    RoundRow,
    ScoresRow,
    SignatureRow,
    UpdateRow,
)
from coordinator.errors import NotFound

_Latest = aliased(RoundRow)
_LATEST = select(func.max(_Latest.number)).where(_Latest.federation_id == FederationRow.id).scalar_subquery()
_REVOKED = select(func.count()).where(
    ClientRow.federation_id == FederationRow.id, ClientRow.state == "revoked"
)
_MEMBERS = (
    select(func.count())
    .select_from(ClientRow)
    .where(ClientRow.federation_id == bindparam("federation_id"), ClientRow.state == "enrolled")
)
_PROGRESS = select(
    FederationRow.id, FederationRow.state, _LATEST, _REVOKED.scalar_subquery(), FederationRow.sum_phase
).where(FederationRow.id.in_(bindparam("federation_ids", expanding=True)))
_STATUS = (
    select(
        FederationRow.state,
        RoundRow.id,
        RoundRow.number,
        RoundRow.state,
        RoundRow.deadline,
        ParticipationRow.state,
    )
    .select_from(FederationRow)
    .outerjoin(
        RoundRow,
        (RoundRow.federation_id == FederationRow.id) & (RoundRow.number == _LATEST),
    )
    .outerjoin(
        ParticipationRow,
        (ParticipationRow.round_id == RoundRow.id) & (ParticipationRow.client_id == bindparam("client")),
    )
    .where(FederationRow.id == bindparam("federation_id"))
)
_TALLIES = (
    select(
        ParticipationRow.state,
        func.count(),
        func.coalesce(func.sum(ParticipationRow.bytes_up), 0),
        func.coalesce(func.sum(ParticipationRow.bytes_down), 0),
        func.count(ScoresRow.client_id),
    )
    .outerjoin(
        ScoresRow,
        (ScoresRow.round_id == ParticipationRow.round_id)
        & (ScoresRow.client_id == ParticipationRow.client_id),
    )
    .where(ParticipationRow.round_id == bindparam("round"))
    .group_by(ParticipationRow.state)
)
_SCORES = (
    select(ScoresRow.scores).where(ScoresRow.round_id == bindparam("round")).order_by(ScoresRow.client_id)
)

_HAS_ROUND_EVENT = select(
    exists().where(
        EventRow.federation_id == bindparam("federation_id"),
        EventRow.number > bindparam("after"),
        EventRow.kind == "round",
        EventRow.data["round"].as_integer() == bindparam("round"),
    )
)
_HAS_PACK_EVENT = select(
    exists().where(
        EventRow.federation_id == bindparam("federation_id"),
        EventRow.number > bindparam("after"),
        EventRow.kind == "alignment",
        EventRow.data["base_model"].as_string() == bindparam("base_model"),
    )
)


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of participations in one state, their encoded bytes, and the number with scores."""

    clients: int
    up: int
    down: int
    scores: int


@dataclass(frozen=True, slots=True)
class ClientRoundStatus:
    """The facts that decide a client's next action: the states of its federation, round and participation.

    `round_id`, `round_number`, `state` and `deadline` are those of the latest round, None before the first;
    `participation` is None before the client joins.
    """

    federation: str
    round_id: int | None
    round_number: int | None
    state: str | None
    deadline: datetime | None
    participation: str | None


@dataclass(frozen=True, slots=True)
class ParticipationDetails:
    """One client in one round; None = not yet.

    Attributes:
        tensor: the first one of its update: name and shape.
    """

    client_id: str
    name: str
    state: str
    joined_at: datetime
    up: int
    down: int
    reject_reason: str | None
    revoked_at: datetime | None
    received_at: datetime | None
    norm: float | None
    epsilon: float | None
    training_epsilon: float | None
    examples: int | None
    tensor: list[Any] | None
    scores: dict[str, Any] | None
    report: dict[str, Any] | None
    reported_at: datetime | None


@dataclass(frozen=True, slots=True)
class FederationProgress:
    """The facts whose change ends a long poll.

    Attributes:
        state: state of the federation.
        round_number: its latest round; 0 = none yet.
        revoked: number of revoked clients: a waiting client may be one of them.
        sum_phase: number of phases of secure sums so far.
    """

    state: str
    round_number: int
    revoked: int
    sum_phase: int


def fetch_status(connection: Session | Connection, federation_id: str, client_id: str) -> ClientRoundStatus:
    """Return the status of a client in its federation's latest round.

    Raises:
        NotFound: the federation does not exist.
    """
    row = run(connection, _STATUS, {"federation_id": federation_id, "client": client_id}).first()
    if row is None:
        raise NotFound
    return ClientRoundStatus(*row)


def fetch_progress(
    connection: Session | Connection, federation_ids: Collection[str]
) -> dict[str, FederationProgress]:
    rows = run(connection, _PROGRESS, {"federation_ids": list(federation_ids)})
    return {
        federation_id: FederationProgress(state, round_number or 0, revoked, sum_phase)
        for federation_id, state, round_number, revoked, sum_phase in rows
    }


def tallies(session: Session, round_id: int) -> dict[str, Tally]:
    rows = run(session, _TALLIES, {"round": round_id})
    return {state: Tally(count, int(up), int(down), scores) for state, count, up, down, scores in rows}


def scores(session: Session, round_id: int) -> list[dict[str, Any]]:
    return list(run(session, _SCORES, {"round": round_id}).scalars())


def has_event(session: Session, federation_id: str, subject: int | str, after: int) -> bool:
    """Whether a round or a base model's pack has an event after the federation's event number `after`."""
    if isinstance(subject, int):
        return bool(
            run(
                session, _HAS_ROUND_EVENT, {"federation_id": federation_id, "round": subject, "after": after}
            ).scalar()
        )
    return bool(
        run(
            session, _HAS_PACK_EVENT, {"federation_id": federation_id, "base_model": subject, "after": after}
        ).scalar()
    )


def participations(session: Session, round_id: int, client_id: str | None) -> list[ParticipationDetails]:
    epsilon = (
        select(func.max(SignatureRow.epsilon))
        .where(SignatureRow.round_id == round_id, SignatureRow.client_id == ParticipationRow.client_id)
        .scalar_subquery()
    )
    query = (
        select(
            ParticipationRow.client_id,
            ClientRow.name,
            ParticipationRow.state,
            ParticipationRow.joined_at,
            ParticipationRow.bytes_up,
            ParticipationRow.bytes_down,
            ParticipationRow.reject_reason,
            ClientRow.revoked_at,
            func.coalesce(UpdateRow.received_at, ParticipationRow.ready_at),
            UpdateRow.norm,
            epsilon,
            UpdateRow.training_epsilon,
            UpdateRow.examples,
            # The first tensor is enough for the rank; whole layouts have thousands.
            UpdateRow.layout[0],
            ScoresRow.scores,
            ProgressRow.report,
            ProgressRow.reported_at,
        )
        .join_from(ParticipationRow, ClientRow, ClientRow.id == ParticipationRow.client_id)
        .outerjoin(
            UpdateRow,
            (UpdateRow.round_id == round_id) & (UpdateRow.client_id == ParticipationRow.client_id),
        )
        .outerjoin(
            ScoresRow,
            (ScoresRow.round_id == round_id) & (ScoresRow.client_id == ParticipationRow.client_id),
        )
        .outerjoin(
            ProgressRow,
            (ProgressRow.round_id == round_id) & (ProgressRow.client_id == ParticipationRow.client_id),
        )
        .where(ParticipationRow.round_id == round_id)
        .order_by(ParticipationRow.client_id)
    )
    if client_id is not None:
        query = query.where(ParticipationRow.client_id == client_id)
    # One query for all clients of a round, however many there are.
    rows: Iterable[Any] = session.execute(query)
    return [ParticipationDetails(*row) for row in rows]


def members(session: Session, federation_id: str) -> int:
    """Return the number of clients that are enrolled and not revoked."""
    return run(session, _MEMBERS, {"federation_id": federation_id}).scalar_one()


def page(session: Session, federation_id: str, *, before: int | None, limit: int) -> list[RoundRow]:

    query = select(RoundRow).where(RoundRow.federation_id == federation_id)
    if before is not None:
        query = query.where(RoundRow.number < before)
    return list(session.scalars(query.order_by(RoundRow.number.desc()).limit(limit)))


def relevance(session: Session, round_id: int, client_id: str | None) -> list[RelevanceRow]:
    """Return the rows of a round's relevance matrix, or one client's only."""
    query = select(RelevanceRow).where(RelevanceRow.round_id == round_id).order_by(RelevanceRow.ordinal)
    if client_id is not None:
        query = query.where(RelevanceRow.client_id == client_id)
    return list(session.scalars(query))


def relevance_columns(session: Session, round_id: int) -> Iterable[str]:
    return session.scalars(
        select(RelevanceRow.client_id).where(RelevanceRow.round_id == round_id).order_by(RelevanceRow.ordinal)
    )
