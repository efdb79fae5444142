"""Faults planted in the work of replicas: transitions of rounds, and leases.

Without a second replica nobody takes a lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from sqlalchemy import select, update

from coordinator import workers
from coordinator.aggregation import job
from coordinator.db.tables.federations import RoundRow
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lifecycle import Step, next_state
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import mutant, replaces
from tests.faults.fault_simulation.storage import replicas_database


def workers_die(plan: Plan, rates: FaultRates) -> bool:
    return rates.replica_crash > 0.005


def _workers_compete(plan: Plan, rates: FaultRates) -> bool:
    return plan.replicas > 1 and rates.slow > 0.01 and rates.replica_stall > 0.005


def _replicas_are_slow(plan: Plan, rates: FaultRates) -> bool:
    return plan.replicas > 1 and rates.slow > 0.01 and plan.sluggish and plan.collect_seconds < 30


def _deadlines_are_contested(plan: Plan, rates: FaultRates) -> bool:
    return plan.replicas == 3 and rates.slow > 0.01 and plan.sluggish and plan.collect_seconds < 10


@mutant(_deadlines_are_contested)
@contextmanager
def moves_rounds_without_comparing() -> Iterator[None]:
    """Due steps are executed later, on rounds that may have changed since the check."""

    def transition(session: Any, row: Any, to: Any, **changes: Any) -> None:
        values = {"state": to, "version": row.version + 1, **changes}
        session.execute(
            update(RoundRow)
            .where(RoundRow.id == row.id)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        session.refresh(row)

    with drives_on_what_it_saw(), patch.object(rounds, "transition", transition):
        yield


@contextmanager
def drives_on_what_it_saw() -> Iterator[None]:
    """Remove the check alone; transitions that compare and set are still safe."""

    def drive(database: Any, tracer: Any = None) -> bool:
        with database.read() as session:
            moment = workers.database_time(session)
            collected = [(row, next_state(facts, moment)) for row, facts in rounds.collecting(session)]
        due = [(row, step) for row, step in collected if step is not None]
        for row, step in due:
            with suppress(rounds.LostRace), database.write() as session:
                federation = workers.lock_federation(session, row.federation_id)
                transitions.apply_step(
                    session, federation, session.merge(row, load=False), step, workers.database_time(session)
                )
        return bool(due)

    with patch.object(workers, "drive", drive):
        yield


@mutant(_replicas_are_slow)
@contextmanager
def takes_leases_that_are_alive() -> Iterator[None]:
    def awaiting(session: Any, _: Any) -> list[tuple[str, int]]:
        leases = select(RoundRow.federation_id, RoundRow.number).where(
            RoundRow.state.in_(("closing", "aggregating"))
        )
        return [(federation_id, number) for federation_id, number in session.execute(leases)]

    def due(facts: Any, moment: Any) -> Step | None:
        return Step("aggregating") if facts.state == "aggregating" else next_state(facts, moment)

    with patch.object(rounds, "awaiting_worker", awaiting), patch.object(job, "next_state", due):
        yield


@replaces(rounds, "awaiting_worker", workers_die)
def leaves_the_dead_their_leases(_: Any, session: Any, __: Any) -> list[tuple[str, int]]:
    closing = select(RoundRow.federation_id, RoundRow.number).where(RoundRow.state == "closing")
    return [(federation_id, number) for federation_id, number in session.execute(closing)]


@replaces(job, "_publish", _workers_compete)
def publishes_without_its_lease(publish: Any, closed: Any, new: Any) -> None:
    claim = closed.claim
    with closed.database.read() as session:
        row = rounds.get_round(session, claim.federation_id, claim.number)
    publish(replace(closed, claim=replace(claim, token=row.lease_token)), new)


@replaces(rounds, "extend_lease", _workers_compete)
def extends_leases_of_others(_: Any, session: Any, round_id: int, __: Any, until: Any) -> None:
    aggregating = update(RoundRow).where(RoundRow.id == round_id, RoundRow.state == "aggregating")
    session.execute(aggregating.values(lease_expires_at=until))


@replaces(workers.Ticker, "_work", _workers_compete)
def releases_leases_of_others(work: Any, ticker: Any, claim: Any) -> None:
    work(ticker, claim)
    with ticker._database.write() as session:
        rounds.expire_leases(session)


@replaces(workers.Ticker, "start", _workers_compete)
def forgets_leases_when_it_starts(start: Any, ticker: Any) -> None:
    with ticker._database.write() as session:
        rounds.expire_leases(session)
    start(ticker)


@replaces(job, "database_time", _replicas_are_slow)
def goes_by_its_own_clock(now: Any, session: Any) -> Any:
    world: Any = replicas_database(0).host
    running = world.scheduler.current().process
    return now(session) + timedelta(seconds=90.0 * getattr(running, "number", 0))
