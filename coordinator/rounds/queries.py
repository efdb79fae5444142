"""What is asked of the database to show rounds and to wait for them; nothing here changes anything."""

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
    RelevanceRow,
    RoundRow,
    ScoresRow,
    SignatureRow,
    UpdateRow,
)
from coordinator.enrolment.store import has_keys
from coordinator.errors import NotFound
from coordinator.federations.claims import Counted

_Other = aliased(RoundRow)
_LATEST = select(func.max(_Other.number)).where(_Other.federation_id == FederationRow.id).scalar_subquery()
_REVOKED = select(func.count()).where(
    ClientRow.federation_id == FederationRow.id, ClientRow.state == "revoked"
)
_SITUATIONS = select(FederationRow.id, FederationRow.state, _LATEST, _REVOKED.scalar_subquery()).where(
    FederationRow.id.in_(bindparam("fids", expanding=True))
)
_LOOK = (
    select(
        FederationRow.state,
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
    .where(FederationRow.id == bindparam("fid"))
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

_TOLD = select(
    exists().where(
        EventRow.federation_id == bindparam("fid"),
        EventRow.number > bindparam("after"),
        EventRow.kind == "round",
        EventRow.data["round"].as_integer() == bindparam("round"),
    )
)
_PACK_TOLD = select(
    exists().where(
        EventRow.federation_id == bindparam("fid"),
        EventRow.number > bindparam("after"),
        EventRow.kind == "alignment",
        EventRow.data["base_model"].as_string() == bindparam("base_model"),
    )
)


@dataclass(frozen=True, slots=True)
class Tally:
    """The participations of a round in one state, their encoded bytes, and how many sent scores."""

    clients: int
    up: int
    down: int
    scores: int


@dataclass(frozen=True, slots=True)
class Look:
    """What a client has to do depends on this: its federation, the latest round, and its part in that.

    `number`, `state` and `deadline` are the round's, None before the first; `part` is None before joining.
    """

    federation: str
    number: int | None
    state: str | None
    deadline: datetime | None
    part: str | None


@dataclass(frozen=True, slots=True)
class PartRow:
    """One client in one round; what is None has not happened."""

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
    examples: int | None
    scores: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Situation:
    """What a client that waits for its next round waits for a change of.

    Attributes:
        state: the federation's.
        number: its latest round; 0 = none yet.
        revoked: how many clients were shut out: who waits may be one of them.
    """

    state: str
    number: int
    revoked: int


def look(asked: Session | Connection, fid: str, client_id: str) -> Look:
    """How does a client's federation stand for it?

    Raises:
        NotFound: there is no such federation.
    """
    found = run(asked, _LOOK, {"fid": fid, "client": client_id}).first()
    if found is None:
        raise NotFound
    return Look(*found)


def situations(asked: Session | Connection, fids: Collection[str]) -> dict[str, Situation]:
    """How do these federations stand?"""
    rows = run(asked, _SITUATIONS, {"fids": list(fids)})
    return {fid: Situation(state, number or 0, revoked) for fid, state, number, revoked in rows}


def tallies(session: Session, round_id: int) -> dict[str, Tally]:
    """How many clients are in which state, how many bytes did they send and get, how many sent scores?"""
    rows = run(session, _TALLIES, {"round": round_id})
    return {state: Tally(count, int(up), int(down), scores) for state, count, up, down, scores in rows}


def scores(session: Session, round_id: int) -> list[dict[str, Any]]:
    """Which scores were sent in, in the order of client ids?"""
    return list(run(session, _SCORES, {"round": round_id}).scalars())


def is_told(session: Session, fid: str, subject: int | str, after: int) -> bool:
    """Whether a round or a base model's pack has an event after the federation's event of number `after`."""
    if isinstance(subject, int):
        return bool(run(session, _TOLD, {"fid": fid, "round": subject, "after": after}).scalar())
    return bool(run(session, _PACK_TOLD, {"fid": fid, "base_model": subject, "after": after}).scalar())


def parts(session: Session, round_id: int, client_id: str | None) -> list[PartRow]:
    """Who took part, and how did it go? With `client_id` that client only."""
    spent = (
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
            UpdateRow.received_at,
            UpdateRow.norm,
            spent,
            UpdateRow.examples,
            ScoresRow.scores,
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
        .where(ParticipationRow.round_id == round_id)
        .order_by(ParticipationRow.client_id)
    )
    if client_id is not None:
        query = query.where(ParticipationRow.client_id == client_id)
    rows: Iterable[Any] = session.execute(query)
    return [PartRow(*row) for row in rows]


def counted(session: Session, round_id: int) -> Counted:
    """How many updates were accepted in a round, from whom, and what have their signatures cost?"""
    rows = session.execute(
        select(ClientRow.credential_hash, SignatureRow.epsilon)
        .join_from(UpdateRow, ClientRow, ClientRow.id == UpdateRow.client_id)
        .outerjoin(
            SignatureRow,
            (SignatureRow.round_id == UpdateRow.round_id)
            & (SignatureRow.client_id == UpdateRow.client_id)
            & (SignatureRow.origin == "update"),
        )
        .where(UpdateRow.round_id == round_id, UpdateRow.reject_reason.is_(None))
    ).all()
    spent = [epsilon for _, epsilon in rows if epsilon is not None]
    return Counted(
        updates=len(rows),
        from_bearers=sum(not has_keys(credential) for credential, _ in rows),
        private=len(spent),
        spent=max(spent, default=None),
    )


def last_updates(session: Session, fid: str, number: int) -> dict[str, int]:
    """In which round, up to this one, was each client's last update that counts?"""
    rows = session.execute(
        select(UpdateRow.client_id, func.max(UpdateRow.round_number))
        .where(
            UpdateRow.federation_id == fid,
            UpdateRow.round_number <= number,
            UpdateRow.reject_reason.is_(None),
        )
        .group_by(UpdateRow.client_id)
    )
    return {client_id: last for client_id, last in rows}


def page(session: Session, fid: str, *, before: int | None, limit: int) -> list[RoundRow]:
    """Which rounds are there, newest first?"""
    query = select(RoundRow).where(RoundRow.federation_id == fid)
    if before is not None:
        query = query.where(RoundRow.number < before)
    return list(session.scalars(query.order_by(RoundRow.number.desc()).limit(limit)))


def relevance(session: Session, round_id: int, client_id: str | None) -> list[RelevanceRow]:
    """Who listened to whom? With `client_id` that client's row only."""
    query = select(RelevanceRow).where(RelevanceRow.round_id == round_id).order_by(RelevanceRow.ordinal)
    if client_id is not None:
        query = query.where(RelevanceRow.client_id == client_id)
    return list(session.scalars(query))


def compared(session: Session, round_id: int) -> Iterable[str]:
    """Which clients do the columns of a round's relevance stand for?"""
    return session.scalars(
        select(RelevanceRow.client_id).where(RelevanceRow.round_id == round_id).order_by(RelevanceRow.ordinal)
    )
