"""Faults planted in the secure sum: in the coordinator's sessions, and in the agreement of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.orm.attributes import set_committed_value

from client_agent.secure_sum import expectation
from coordinator.db.tables.federations import ClientRow, ParticipationRow, PayloadRow, RoundRow
from coordinator.db.tables.identity import RosterRow
from coordinator.db.tables.secure_sum import SumMessageRow, SumSessionRow
from coordinator.rounds import sums, transitions
from coordinator.rounds.lease import Lease
from coordinator.secure_sum import accept, leases, new_terms, opening, phases, sessions, store, worker
from coordinator.storage import garbage_collection
from schemas.secure_sum.terms import threshold_for
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.member_mutants import lied_to, masked
from tests.faults.fault_simulation.planting import collecting_at_once, mutant, omits, replaces
from tests.faults.fault_simulation.replicas import LEASE_SECONDS


def _phases_end(plan: Plan, rates: FaultRates) -> bool:
    """Enough members for a phase to close without some, and messages that are late."""
    is_short = plan.summed is not None and plan.summed.phase_seconds < 10 and plan.agents > 6
    return masked(plan, rates) and is_short and rates.sum_late > 0.1


def _sums_fail(plan: Plan, rates: FaultRates) -> bool:
    """Too few members for a phase to close without two, and messages that are late."""
    is_short = plan.summed is not None and plan.summed.phase_seconds < 10 and plan.agents < 7
    return masked(plan, rates) and is_short and rates.sum_late > 0.1


def _phases_are_contested(plan: Plan, rates: FaultRates) -> bool:
    return masked(plan, rates) and plan.replicas > 1 and rates.slow > 0.01


def _workers_compete(plan: Plan, rates: FaultRates) -> bool:
    is_late = rates.slow > 0.01 and rates.replica_stall > 0.005
    return plan.summed is not None and plan.replicas > 1 and is_late


def _revoked_when_ready(plan: Plan, _: FaultRates) -> bool:
    return plan.summed is not None and plan.revoked > 0 and plan.revoked_while == "ready"


def _revoked_in_a_step(plan: Plan, rates: FaultRates) -> bool:
    is_slow = plan.replicas > 1 and rates.slow > 0.01
    return masked(plan, rates) and plan.revoked > 0 and plan.revoked_while in "01234" and is_slow


@mutant(_phases_are_contested)
@contextmanager
def closes_phases_twice() -> Iterator[None]:
    """Due phases are closed later, whatever has changed since the check."""

    def drive(database: Any, key: Any) -> bool:
        with database.read() as session:
            now = sessions.database_time(session)
            before = store.summing(session)
            due = [pair for pair in before if sessions._is_due(session, pair[1], now)]
            session.expunge_all()
        for row, summed in due:
            with database.write() as session:
                federation = sessions.lock_federation(session, row.federation_id)
                current = sessions.rounds.get_round(session, row.federation_id, row.number, lock=True)
                if current.state != "summing":
                    continue
                if summed is None:
                    if store.newest(session, row.id) is None:
                        sessions.open_first(session, federation, current, now, key)
                    continue
                current_row = session.get(SumSessionRow, summed.id)
                for name in ("state", "version", "closed", "phase_opened_at"):
                    set_committed_value(current_row, name, getattr(summed, name))
                sessions.advance(session, current, current_row, now, key)
        return bool(due)

    def transition(session: Any, row: SumSessionRow, changes: Any) -> None:
        session.execute(
            update(SumSessionRow)
            .where(SumSessionRow.id == row.id)
            .values(version=row.version + 1, **changes)
            .execution_options(synchronize_session=False)
        )
        session.refresh(row)

    with patch.object(sessions, "drive", drive), patch.object(store, "_transition", transition):
        yield


@mutant(_revoked_when_ready)
@contextmanager
def sums_with_the_revoked() -> Iterator[None]:
    """A client that was revoked after its training is still a member of the sum."""

    def ready(session: Any, round_id: int, *, but: Any) -> list[Any]:
        query = (
            select(ClientRow.id, ClientRow.base_model, ClientRow.profile)
            .join(ParticipationRow, ParticipationRow.client_id == ClientRow.id)
            .where(ParticipationRow.round_id == round_id, ParticipationRow.state == "ready")
        )
        result = session.execute(query.order_by(ParticipationRow.ready_at, ClientRow.id))
        return [
            new_terms.ReadyClient(client, model, new_terms.Profile.model_validate(profile))
            for client, model, profile in result
            if client not in but
        ]

    def keys(session: Any, federation_id: str, version: int) -> dict[str, str]:
        query = select(RosterRow.client_id, RosterRow.document).where(
            RosterRow.federation_id == federation_id, RosterRow.version <= version
        )
        links = session.execute(query.order_by(RosterRow.version))
        return {client: link["public_key"] for client, link in links if link["public_key"] is not None}

    with patch.object(sessions, "ready_clients", ready), patch.object(new_terms, "_keys", keys):
        yield


@mutant(_workers_compete)
@contextmanager
def commits_totals_without_its_lease() -> Iterator[None]:
    """A worker neither extends its lease nor asks for it at the end."""
    commit = opening._commit

    def unfenced(staging: Any, claim: Any, *committed: Any) -> None:
        with staging.database.read() as session:
            row = session.get(SumSessionRow, claim.session_id)
        commit(staging, replace(claim, token=row.lease_token), *committed)

    with (
        patch.object(opening, "_commit", unfenced),
        patch.object(worker, "lease_of", lambda *_: Lease(lambda _: None, LEASE_SECONDS)),
    ):
        yield


@mutant(_workers_compete)
@contextmanager
def takes_leases_of_sums_that_are_alive() -> Iterator[None]:
    any_lease = or_(SumSessionRow.id > 0, SumSessionRow.lease_expires_at <= bindparam("now"))
    conditions = (
        select(SumSessionRow.id, RoundRow.federation_id, RoundRow.number)
        .join(RoundRow, RoundRow.id == SumSessionRow.round_id)
        .where(SumSessionRow.state == store.OPENING, any_lease)
    )
    with patch.object(leases, "_IS_FREE", any_lease), patch.object(leases, "_FREE", conditions):
        yield


@replaces(phases, "required", _sums_fail)
def closes_phases_below_the_threshold(required: Any, terms: Any, phase: Any) -> int:
    return int(required(terms, phase)) - 1


@mutant(masked)
@contextmanager
def agrees_on_a_lower_threshold() -> Iterator[None]:
    """Both sides take floor(2N/3) for the threshold."""

    def lower(members: int) -> int:
        return threshold_for(members) - 1

    with patch.object(new_terms, "threshold_for", lower), patch.object(expectation, "threshold_for", lower):
        yield


@mutant(masked)
def collects_masked_vectors() -> AbstractContextManager[None]:
    """Masked vectors are collected as unreferenced payloads."""
    needed = [column for column in garbage_collection._REFERENCES if column is not SumMessageRow.payload_id]
    return collecting_at_once(PayloadRow.digest.is_not(None), needed)


omits("keeps the messages of sums", sums, "delete_messages", masked)
omits("takes messages after their phase", accept, "_require_due", _phases_end)
omits("takes messages of the revoked", accept, "still_member", _revoked_in_a_step)
omits("forgets who has unmasked", store, "spent", lied_to, value=lambda *_: set())
omits("goes on after sums that failed", transitions, "pause", _sums_fail)
