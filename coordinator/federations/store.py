"""Load, create and show federations and their clients. A change of a federation's rounds locks its row."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, func, select, union_all, update
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time, run
from coordinator.db.ids import new_id
from coordinator.db.tables.alignment import AnchorsRow, PackRow
from coordinator.db.tables.federations import ClientRow, FederationRow, ParticipationRow, RoundRow, UpdateRow
from coordinator.enrolment import names, roster
from coordinator.enrolment.store import client_view
from coordinator.errors import NotFound
from coordinator.federations import claims
from schemas.messages.enrolment import Client, ClientPage
from schemas.messages.federation_views import (
    ClientCounts,
    Federation,
    FederationPage,
    PackStanding,
    PackVerdict,
    RoundNumber,
)
from schemas.messages.federations import AlignmentPlan, FederationPlan

_SHARING: dict[PackVerdict, str] = {
    "passed": "Its pack passed the acceptance test: what both packs select is shared across architectures.",
    "failed": "Its pack failed the acceptance test: it shares with clients of the identical base model only.",
    "untested": "Its pack is not tested: what both packs select is shared across architectures. Run "
    "`tessera agent alignment-test` in one of its silos to test it.",
}
_UNTESTED_AND_REQUIRED = (
    "Its pack is not tested, and the plan requires a passed test (alignment.require_passed): it shares with "
    "clients of the identical base model only. Run `tessera agent alignment-test` in one of its silos."
)
_PIVOT = "Its pack is the pivot's, which the packs of the others are tested against."
_PLAN = select(FederationRow.plan).where(FederationRow.id == bindparam("federation_id"))


def create(session: Session, plan: FederationPlan) -> FederationRow:
    """Store a new federation with its resolved plan.

    Raises:
        NameLooksAlike: another federation's name resembles this one.
    """
    names.reserve(session, "federation", plan.name)
    row = FederationRow(
        id=new_id("fed"),
        name=plan.name,
        state="open",
        plan=plan.model_dump(mode="json"),
        events=0,
        created_at=database_time(session),
        finished_at=None,
    )
    session.add(row)
    session.flush()
    return row


def federation(session: Session, federation_id: str) -> FederationRow:
    """Load a federation.

    Raises:
        NotFound: no federation has this id.
    """
    row = session.get(FederationRow, federation_id)
    if row is None:
        raise NotFound
    return row


def plan(session: Session, federation_id: str) -> FederationPlan:
    """Load the resolved plan of a federation.

    Raises:
        NotFound: no federation has this id.
    """
    row = run(session, _PLAN, {"federation_id": federation_id}).first()
    if row is None:
        raise NotFound
    return FederationPlan.model_validate(row.plan)


def plan_of(row: FederationRow) -> FederationPlan:
    return FederationPlan.model_validate(row.plan)


def page(
    session: Session, *, after: str | None, limit: int, only: Collection[str] | None = None
) -> FederationPage:
    """Return a page of federations, oldest first; `only` those of these ids."""
    query = select(FederationRow).order_by(FederationRow.id).limit(limit + 1)
    if only is not None:
        query = query.where(FederationRow.id.in_(only))
    if after is not None:
        query = query.where(FederationRow.id > after)
    rows = list(session.scalars(query))
    return FederationPage(
        items=[view(session, row) for row in rows[:limit]],
        next=rows[limit - 1].id if len(rows) > limit else None,
    )


def view(session: Session, row: FederationRow) -> Federation:
    plan = plan_of(row)
    return Federation.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "state": row.state,
            "plan": plan,
            "round": _current_round(session, row.id),
            "clients": _client_counts(session, row.id),
            "claims": claims.stored_plan_claims(plan),
            "alignment": _alignment(session, row.id, plan.alignment) if plan.alignment is not None else [],
            "created_at": row.created_at,
        }
    )


def _alignment(session: Session, federation_id: str, plan: AlignmentPlan) -> list[PackStanding]:
    rows = session.scalars(
        select(PackRow).where(PackRow.federation_id == federation_id).order_by(PackRow.base_model)
    )
    return [pack_status(row, plan) for row in rows]


def pack_status(row: PackRow, plan: AlignmentPlan) -> PackStanding:
    """Return the verdict of a pack's acceptance test, and what its base model shares as a consequence."""
    verdict, sharing = _verdict(row), _SHARING[_verdict(row)]
    if verdict == "untested" and plan.require_passed:
        sharing = _PIVOT if row.base_model == plan.pivot else _UNTESTED_AND_REQUIRED
    return PackStanding(base_model=row.base_model, verdict=verdict, sharing=sharing)


def shares_across(row: PackRow, plan: AlignmentPlan) -> bool:
    """Whether the clients of a pack share P and Q with clients of other base models."""
    match _verdict(row):
        case "untested":
            return not plan.require_passed or row.base_model == plan.pivot
        case verdict:
            return verdict == "passed"


def _verdict(row: PackRow) -> PackVerdict:
    verdict: PackVerdict = row.acceptance["verdict"] if row.acceptance is not None else "untested"
    return verdict


def anchors_stored(session: Session, federation_id: str) -> int:
    return session.scalar(select(AnchorsRow.count).where(AnchorsRow.federation_id == federation_id)) or 0


def pack_selected(session: Session, federation_id: str, base_model: str) -> list[str] | None:
    """Return the (block, role)s that a base model's alignment pack shares; None without a pack."""
    return session.scalar(
        select(PackRow.selected).where(
            PackRow.federation_id == federation_id, PackRow.base_model == base_model
        )
    )


def client(session: Session, federation_id: str, client_id: str) -> ClientRow:
    """Load a client of a federation.

    Raises:
        NotFound: the federation has no such client.
    """
    row = session.scalar(
        select(ClientRow).where(ClientRow.federation_id == federation_id, ClientRow.id == client_id)
    )
    if row is None:
        raise NotFound
    return row


def clients(session: Session, federation_id: str, *, after: str | None, limit: int) -> ClientPage:
    query = (
        select(ClientRow)
        .where(ClientRow.federation_id == federation_id)
        .order_by(ClientRow.id)
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(ClientRow.id > after)
    rows = list(session.scalars(query))
    shown = rows[:limit]
    rounds = _rounds_of(session, [row.id for row in shown])
    return ClientPage(
        items=[client_view(row, rounds=rounds.get(row.id, 0)) for row in shown],
        next=shown[-1].id if len(rows) > limit else None,
    )


def client_details(session: Session, federation_id: str, client_id: str) -> Client:
    row = client(session, federation_id, client_id)
    return client_view(row, rounds=_rounds_of(session, [row.id]).get(row.id, 0))


def revoke(session: Session, federation_id: str, client_id: str) -> bool:
    """Revoke a client, also in the rounds that wait for it; return False if it was revoked before.

    Updates that it delivered still count; it is no longer ready for a sum. The caller holds the federation's
    lock.
    """
    row = client(session, federation_id, client_id)
    # A repeated request: its roster entry exists.
    if row.state == "revoked":
        return False
    # Participations before their client: the other order can deadlock.
    unfinished = select(RoundRow.id).where(
        RoundRow.federation_id == federation_id, RoundRow.state.in_(("open", "collecting"))
    )
    session.execute(
        update(ParticipationRow)
        .where(
            ParticipationRow.client_id == client_id,
            ParticipationRow.round_id.in_(unfinished),
            ParticipationRow.state.in_(("joined", "ready")),
        )
        .values(state="revoked")
    )
    now = database_time(session)
    row.state, row.revoked_at = "revoked", now
    roster.append(session, row, "revoked", None, now)
    return True


def rounds_by_state(session: Session) -> dict[str, int]:
    rows = session.execute(select(RoundRow.state, func.count()).group_by(RoundRow.state))
    return {state: count for state, count in rows}


def _rounds_of(session: Session, client_ids: list[str]) -> dict[str, int]:
    """Return the number of rounds in which each client sent an update, or was ready for a sum."""
    # Where updates are summed, no client has update rows.
    summed = (ParticipationRow.client_id.in_(client_ids), ParticipationRow.ready_at.is_not(None))
    rounds_sent = union_all(
        select(UpdateRow.client_id).where(UpdateRow.client_id.in_(client_ids)),
        select(ParticipationRow.client_id).where(*summed),
    ).subquery()
    rows = session.execute(select(rounds_sent.c.client_id, func.count()).group_by(rounds_sent.c.client_id))
    return {client_id: count for client_id, count in rows}


def _current_round(session: Session, federation_id: str) -> RoundNumber | None:
    row = session.execute(
        select(RoundRow.number, RoundRow.state)
        .where(RoundRow.federation_id == federation_id)
        .order_by(RoundRow.number.desc())
        .limit(1)
    ).first()
    return RoundNumber(number=row.number, state=row.state) if row is not None else None


def _client_counts(session: Session, federation_id: str) -> ClientCounts:
    rows = session.execute(
        select(ClientRow.state, func.count())
        .where(ClientRow.federation_id == federation_id)
        .group_by(ClientRow.state)
    )
    counts = {state: count for state, count in rows}
    return ClientCounts(enrolled=counts.get("enrolled", 0), revoked=counts.get("revoked", 0))
