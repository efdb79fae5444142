"""Faults planted in the coordinator, each without one real safeguard. The simulation must find every one.

`where` says in which schedules the safeguard is needed at all: without a second replica nobody takes a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from sqlalchemy import delete, select

from coordinator import workers
from coordinator.aggregation import job
from coordinator.aggregation import store as aggregation_store
from coordinator.auth import nonces
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import ChunkRow, PayloadRow, UpdateRow, WeightsRow
from coordinator.enrolment import routes as enrolment
from coordinator.enrolment import store
from coordinator.joining import join
from coordinator.rounds import base_weights, lifecycle
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import Step
from coordinator.storage import garbage_collection
from coordinator.strategies.base import Cohort
from coordinator.updates import commit
from coordinator.updates import store as updates
from coordinator.weights import store as weights
from tests.fault_simulation.agent_mutants import AGENT_MUTANTS
from tests.fault_simulation.lease_mutants import (
    extends_anybodys_lease,
    forgets_leases_when_it_starts,
    goes_by_its_own_clock,
    leaves_the_dead_their_leases,
    moves_rounds_without_comparing,
    publishes_without_its_lease,
    releases_anybodys_lease,
    takes_leases_that_are_alive,
)
from tests.fault_simulation.pack_mutants import PACK_MUTANTS
from tests.fault_simulation.receipt_mutants import (
    acknowledges_other_bytes,
    answers_before_the_commit,
    keeps_only_the_first_of_several,
    takes_updates_after_closing,
)
from tests.fault_simulation.recipe_mutants import RECIPE_MUTANTS
from tests.fault_simulation.sum_mutants import SUM_MUTANTS
from tests.fault_simulation.thinning_mutants import THINNING_MUTANTS
from tests.fault_simulation.weather import Plan, Weather

Where = Callable[[Plan, Weather], bool]


@dataclass(frozen=True)
class Mutant:
    """A planted fault."""

    name: str
    plant: Callable[[], AbstractContextManager[object]]
    where: Where


def _always(plan: Plan, weather: Weather) -> bool:
    return True


def _workers_die(plan: Plan, weather: Weather) -> bool:
    return weather.replica_crash > 0.005


def _workers_compete(plan: Plan, weather: Weather) -> bool:
    return plan.replicas > 1 and weather.slow > 0.01 and weather.replica_stall > 0.005


def _replicas_are_slow(plan: Plan, weather: Weather) -> bool:
    return plan.replicas > 1 and weather.slow > 0.01 and plan.sluggish and plan.collect_seconds < 30


def _deadlines_are_contested(plan: Plan, weather: Weather) -> bool:
    return plan.replicas == 3 and weather.slow > 0.01 and plan.sluggish and plan.collect_seconds < 10


def _revoked_while(what: str) -> Where:
    def where(plan: Plan, weather: Weather) -> bool:
        is_slow = plan.replicas > 1 and weather.slow > 0.01
        return plan.revoked > 0 and plan.revoked_while == what and is_slow

    return where


def _rounds_end_early(plan: Plan, weather: Weather) -> bool:
    return plan.collect_seconds < 30 and plan.rounds > 1 and plan.sluggish


def _set(owner: object, name: str, value: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(owner, name, value)


def _nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def publishes_in_two_transactions() -> Iterator[None]:
    publish = job._publish

    def twice(database: Any, claim: Any, weighing: Any, done: Any) -> None:
        with database.write() as session:
            for client, body in sorted(done.bodies.items()):
                stored = body.adopted(body.staged.adopt(session))
                weights.assign(
                    session, claim.federation_id, client, claim.number + 1, stored, database_time(session)
                )
        publish(database, claim, weighing, replace(done, bodies={}))

    with patch.object(job, "_publish", twice):
        yield


@contextmanager
def collects_what_is_served() -> Iterator[None]:
    """A row that is referred to cannot be deleted; its bytes can."""

    def collect(database: Any, **_: Any) -> int:
        with database.write() as session:
            kept = select(UpdateRow.payload_id).union(select(UpdateRow.state_payload_id))
            session.execute(delete(ChunkRow).where(ChunkRow.payload_id.not_in(kept)))
        return 0

    with patch.object(garbage_collection, "collect", collect):
        yield


@contextmanager
def collects_what_is_in_the_making() -> Iterator[None]:
    collect, every = garbage_collection.collect, garbage_collection._REFERENCES
    unreferenced = select(PayloadRow.id).where(
        ~garbage_collection.or_(
            *(garbage_collection.exists().where(column == PayloadRow.id) for column in every)
        )
    )
    with (
        patch.object(garbage_collection, "_UNREFERENCED", unreferenced),
        patch.object(
            garbage_collection, "collect", lambda database, **_: collect(database, grace=timedelta(0))
        ),
        patch.object(workers, "_COLLECT_EVERY_SECONDS", 0.0),
    ):
        yield


@contextmanager
def counts_earlier_rounds_again() -> Iterator[None]:
    made = aggregation_store._established

    def counted(*args: Any) -> Any:
        one = made(*args)
        return replace(one, facts=replace(one.facts, is_source=True))

    with patch.object(aggregation_store, "_established", counted):
        yield


@contextmanager
def aggregates_in_any_order() -> Iterator[None]:
    def by_chance(self: Any) -> None:
        object.__setattr__(self, "clients", tuple(sorted(self.clients, key=lambda one: one.client[-6:])))

    with patch.object(Cohort, "__post_init__", by_chance):
        yield


@contextmanager
def counts_who_has_only_joined() -> Iterator[None]:
    facts = rounds._facts

    def counted(row: Any, plan: Any, joined: int, expected: int, waiting: int, delivered: int) -> Any:
        return facts(row, plan, joined, expected, 0, joined)

    with patch.object(rounds, "_facts", counted), patch.object(rounds, "is_waiting", lambda *_: False):
        yield


@contextmanager
def closes_with_too_few() -> Iterator[None]:
    collecting = lifecycle._collecting

    def close(facts: Any, now: Any) -> Any:
        step = collecting(facts, now)
        return Step("closing") if step is not None else None

    with patch.object(lifecycle, "_collecting", close):
        yield


@contextmanager
def serves_anybodys_weights() -> Iterator[None]:
    class Bases:
        @staticmethod
        def newest(session: Any, _: str, number: int | None = None) -> Any:
            query = select(WeightsRow).order_by(WeightsRow.round_number.desc(), WeightsRow.id)
            row = session.scalar(query.where(WeightsRow.round_number <= (number or 1000)).limit(1))
            return base_weights.ServedWeights(
                row.round_number, row.payload_id, row.head, row.begin, row.digest, row.bytes
            )

    with patch.object(weights, "base_weights", Bases):
        yield


MUTANTS: tuple[Mutant, ...] = (
    Mutant("moves rounds without comparing", moves_rounds_without_comparing, _deadlines_are_contested),
    Mutant("takes leases that are alive", takes_leases_that_are_alive, _replicas_are_slow),
    Mutant("leaves the dead their leases", leaves_the_dead_their_leases, _workers_die),
    Mutant("publishes without its lease", publishes_without_its_lease, _workers_compete),
    Mutant("extends anybody's lease", extends_anybodys_lease, _workers_compete),
    Mutant("releases anybody's lease", releases_anybodys_lease, _workers_compete),
    Mutant("forgets leases when it starts", forgets_leases_when_it_starts, _workers_compete),
    Mutant("goes by its own clock", goes_by_its_own_clock, _replicas_are_slow),
    Mutant("publishes in two transactions", publishes_in_two_transactions, _always),
    Mutant("collects what is served", collects_what_is_served, _always),
    Mutant("collects what is in the making", collects_what_is_in_the_making, _always),
    Mutant("counts earlier rounds again", counts_earlier_rounds_again, _rounds_end_early),
    Mutant("aggregates in any order", aggregates_in_any_order, _always),
    Mutant("counts who has only joined", counts_who_has_only_joined, _always),
    Mutant("closes with too few updates", closes_with_too_few, _rounds_end_early),
    Mutant("serves anybody's weights", serves_anybodys_weights, _always),
    Mutant(
        "takes updates after closing began",
        takes_updates_after_closing,
        _rounds_end_early,
    ),
    Mutant("takes updates of the revoked", _set(commit, "still_member", _nothing), _revoked_while("update")),
    Mutant("lets the revoked join", _set(join, "still_member", _nothing), _revoked_while("join")),
    Mutant("forgets that a join was answered", _set(join, "_earlier_answer", _nothing), _always),
    Mutant("forgets that an update is there", _set(updates, "_as_receipt", _nothing), _always),
    Mutant("answers before the commit", answers_before_the_commit, _workers_die),
    Mutant("acknowledges other bytes", acknowledges_other_bytes, lambda plan, _: plan.two_mouthed),
    Mutant("keeps only the first of several", keeps_only_the_first_of_several, _always),
    Mutant("keeps quiet of rejected updates", _set(rounds, "reject_updates", _nothing), _rounds_end_early),
    Mutant(
        "lets a token be used twice",
        _set(enrolment, "_is_repeat", lambda *_: True),
        lambda plan, _: plan.thief,
    ),
    Mutant(
        "answers a signed request twice",
        _set(nonces, "insert_new", lambda *_: True),
        lambda _, weather: weather.twice > 0,
    ),
    Mutant(
        "lets replaced keys live",
        _set(store, "expire_keys", _nothing),
        lambda plan, _: plan.rotations > 0 and plan.at_once,
    ),
    *(
        Mutant(name, plant, where)
        for name, plant, where in (
            *AGENT_MUTANTS,
            *RECIPE_MUTANTS,
            *PACK_MUTANTS,
            *THINNING_MUTANTS,
            *SUM_MUTANTS,
        )
    ),
)


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """Let a mutant live for a while; None changes nothing."""
    with ExitStack() as stack:
        if mutant is not None:
            stack.enter_context(mutant.plant())
        yield
