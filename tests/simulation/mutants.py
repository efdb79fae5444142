"""Faults planted in the coordinator, each without one real safeguard. The simulation must find every one.

`where` says in which schedules the safeguard is needed at all: without a second replica nobody takes a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from sqlalchemy import delete, select, update

from coordinator import payloads
from coordinator.aggregation import joining, publishing, ticker
from coordinator.aggregation import store as aggregation_store
from coordinator.enrolment import routes as enrolment
from coordinator.enrolment import store as credentials
from coordinator.rounds import control, lifecycle
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import Step, next_state
from coordinator.tables import ChunkRow, PayloadRow, RoundRow, UpdateRow, WeightsRow
from coordinator.updates import delivery
from coordinator.weights import store as weights
from tests.simulation.agent_mutants import AGENT_MUTANTS
from tests.simulation.late_mutants import answers_before_the_commit, acknowledges_other_bytes
from tests.simulation.storage import replicas_database
from tests.simulation.weather import Plan, Weather

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


def _somebody_is_revoked(plan: Plan, weather: Weather) -> bool:
    return plan.revoked > 0 and plan.replicas > 1 and weather.slow > 0.01


def _rounds_end_early(plan: Plan, weather: Weather) -> bool:
    return plan.collect_seconds < 30 and plan.rounds > 1 and plan.sluggish


def _set(owner: object, name: str, value: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(owner, name, value)


def _nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def moves_rounds_without_comparing() -> Iterator[None]:
    """Steps that were due when somebody looked are taken later, on rounds that have moved on meanwhile."""

    def transition(session: Any, row: Any, to: Any, **changes: Any) -> None:
        values = {"state": to, "version": row.version + 1, **changes}
        session.execute(
            update(RoundRow).where(RoundRow.id == row.id).values(**values).execution_options(synchronize_session=False)
        )
        session.refresh(row)

    with drives_on_what_it_saw(), patch.object(rounds, "transition", transition):
        yield


@contextmanager
def drives_on_what_it_saw() -> Iterator[None]:
    """Only that: where transitions compare and set, it does no harm."""

    def drive(database: Any) -> bool:
        with database.read() as session:
            moment = ticker.now(session)
            seen = [(row, next_state(facts, moment)) for row, facts in rounds.collecting(session)]
        due = [(row, step) for row, step in seen if step is not None]
        for row, step in due:
            with suppress(rounds.LostRace), database.write() as session:
                federation = ticker.lock_federation(session, row.federation_id)
                control.take(session, federation, session.merge(row, load=False), step)
        return bool(due)

    with patch.object(ticker, "drive", drive):
        yield


@contextmanager
def takes_leases_that_are_alive() -> Iterator[None]:
    def awaiting(session: Any, _: Any) -> list[tuple[str, int]]:
        taken = select(RoundRow.federation_id, RoundRow.number).where(
            RoundRow.state.in_(("closing", "aggregating"))
        )
        return [(fid, number) for fid, number in session.execute(taken)]

    def due(facts: Any, moment: Any) -> Step | None:
        return Step("aggregating") if facts.state == "aggregating" else next_state(facts, moment)

    with patch.object(rounds, "awaiting_worker", awaiting), patch.object(publishing, "next_state", due):
        yield


@contextmanager
def leaves_the_dead_their_leases() -> Iterator[None]:
    def awaiting(session: Any, _: Any) -> list[tuple[str, int]]:
        closing = select(RoundRow.federation_id, RoundRow.number).where(RoundRow.state == "closing")
        return [(fid, number) for fid, number in session.execute(closing)]

    with patch.object(rounds, "awaiting_worker", awaiting):
        yield


@contextmanager
def publishes_without_its_lease() -> Iterator[None]:
    publish = publishing._publish

    def unfenced(database: Any, claim: Any, weighing: Any, made: Any) -> None:
        with database.read() as session:
            row = rounds.numbered(session, claim.federation_id, claim.number)
        publish(database, replace(claim, token=row.lease_token), weighing, made)

    with patch.object(publishing, "_publish", unfenced):
        yield


@contextmanager
def extends_anybodys_lease() -> Iterator[None]:
    def extend(session: Any, round_id: int, _: Any, until: Any) -> None:
        session.execute(
            update(RoundRow)
            .where(RoundRow.id == round_id, RoundRow.state == "aggregating")
            .values(lease_expires_at=until)
        )

    with patch.object(rounds, "extend_lease", extend):
        yield


@contextmanager
def releases_anybodys_lease() -> Iterator[None]:
    work = ticker.Ticker._work

    def release(self: Any, claim: Any) -> None:
        work(self, claim)
        with self._database.write() as session:
            rounds.expire_leases(session)

    with patch.object(ticker.Ticker, "_work", release):
        yield


@contextmanager
def forgets_leases_when_it_starts() -> Iterator[None]:
    start = ticker.Ticker.start

    def forget(self: Any) -> None:
        with self._database.write() as session:
            rounds.expire_leases(session)
        start(self)

    with patch.object(ticker.Ticker, "start", forget):
        yield


@contextmanager
def goes_by_its_own_clock() -> Iterator[None]:
    now = publishing.now

    def own(session: Any) -> Any:
        world: Any = replicas_database(0).host
        running = world.scheduler.current().process
        return now(session) + timedelta(seconds=90.0 * getattr(running, "number", 0))

    with patch.object(publishing, "now", own):
        yield


@contextmanager
def publishes_in_two_transactions() -> Iterator[None]:
    publish = publishing._publish

    def twice(database: Any, claim: Any, weighing: Any, made: Any) -> None:
        with database.write() as session:
            for client, body in sorted(made.items()):
                stored = body.adopted(body.staged.adopt(session))
                weights.give(session, claim.federation_id, client, claim.number + 1, stored, publishing.now(session))
        publish(database, claim, weighing, {})

    with patch.object(publishing, "_publish", twice):
        yield


@contextmanager
def collects_what_is_served() -> Iterator[None]:
    """A row that is referred to cannot be deleted; its bytes can."""

    def collect(database: Any, **_: Any) -> int:
        with database.write() as session:
            kept = select(UpdateRow.payload_id).union(select(UpdateRow.state_payload_id))
            session.execute(delete(ChunkRow).where(ChunkRow.payload_id.not_in(kept)))
        return 0

    with patch.object(payloads, "collect", collect):
        yield


@contextmanager
def collects_what_is_in_the_making() -> Iterator[None]:
    collect, every = payloads.collect, payloads._REFERENCES
    unreferenced = select(PayloadRow.id).where(
        ~payloads.or_(*(payloads.exists().where(column == PayloadRow.id) for column in every))
    )
    with (
        patch.object(payloads, "_unreferenced", lambda: unreferenced),
        patch.object(payloads, "collect", lambda database, **_: collect(database, grace=timedelta(0))),
        patch.object(ticker, "_COLLECT_EVERY_SECONDS", 0.0),
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
def aggregates_as_it_comes() -> Iterator[None]:
    established = aggregation_store.established

    def as_they_arrived(*args: Any) -> Any:
        return sorted(established(*args), key=lambda one: one.state.payload_id)

    with patch.object(aggregation_store, "established", as_they_arrived):
        yield


@contextmanager
def counts_who_has_only_joined() -> Iterator[None]:
    facts = rounds._facts

    def joined(row: Any, plan: Any, expected: int, waiting: int, delivered: int) -> Any:
        return facts(row, plan, expected, 0, expected)

    with patch.object(rounds, "_facts", joined):
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
            return session.scalar(query.where(WeightsRow.round_number <= (number or 1000)).limit(1))

    with patch.object(weights, "bases", Bases):
        yield


MUTANTS: tuple[Mutant, ...] = (
    Mutant("moves rounds without comparing", moves_rounds_without_comparing, _replicas_are_slow),
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
    Mutant("aggregates as it comes", aggregates_as_it_comes, _always),
    Mutant("counts who has only joined", counts_who_has_only_joined, _always),
    Mutant("closes with too few updates", closes_with_too_few, _rounds_end_early),
    Mutant("serves anybody's weights", serves_anybodys_weights, _always),
    Mutant(
        "takes updates after closing began",
        _set(delivery, "TAKING_PART", frozenset({"open", "collecting", "closing", "aggregating", "published"})),
        _rounds_end_early,
    ),
    Mutant("takes updates of the revoked", _set(delivery, "still_member", _nothing), _somebody_is_revoked),
    Mutant("lets the revoked join", _set(joining, "still_member", _nothing), _somebody_is_revoked),
    Mutant("forgets that a join was answered", _set(joining, "_known", _nothing), _always),
    Mutant("forgets that an update is there", _set(delivery, "_known", _nothing), _always),
    Mutant("answers before the commit", answers_before_the_commit, _workers_die),
    Mutant("acknowledges other bytes", acknowledges_other_bytes, lambda plan, _: plan.two_mouthed),
    Mutant("keeps quiet of rejected updates", _set(rounds, "reject_updates", _nothing), _rounds_end_early),
    Mutant("lets a token be used twice", _set(enrolment, "_is_repeat", lambda *_: True), lambda plan, _: plan.thief),
    Mutant(
        "answers a signed request twice",
        _set(credentials, "use_nonce", lambda *_: True),
        lambda _, weather: weather.twice > 0,
    ),
    *(Mutant(name, plant, where) for name, plant, where in AGENT_MUTANTS),
)


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """Let a mutant live for a while; None changes nothing."""
    with ExitStack() as stack:
        if mutant is not None:
            stack.enter_context(mutant.plant())
        yield
