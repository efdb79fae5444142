"""Faults planted in the coordinator, each without one safeguard. The simulation must find all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sqlalchemy import delete, select, true

from coordinator.aggregation import job, retention
from coordinator.aggregation import store as aggregation_store
from coordinator.auth import nonces
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import ChunkRow, UpdateRow, WeightsRow
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
from tests.faults.fault_simulation import (  # noqa: F401 - they register their faults
    agent_mutants,
    bank_mutants,
    count_mutants,
    lease_mutants,
    member_mutants,
    private_mutants,
    receipt_mutants,
    recipe_mutants,
    sum_mutants,
)
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import (
    MUTANTS,
    Mutant,
    Where,
    collecting_at_once,
    mutant,
    omits,
    replaces,
)
from tests.faults.fault_simulation.receipt_mutants import rounds_end_early

__all__ = ["MUTANTS", "Mutant", "planted"]

_LATER = 2**31 - 1


def _revoked_while(occasion: str) -> Where:
    def where(plan: Plan, rates: FaultRates) -> bool:
        is_slow = plan.replicas > 1 and rates.slow > 0.01
        return plan.revoked > 0 and plan.revoked_while == occasion and is_slow

    return where


def _rounds_are_thinned_out(plan: Plan, rates: FaultRates) -> bool:
    return plan.keep_rounds is not None


def _rounds_are_missed(plan: Plan, rates: FaultRates) -> bool:
    return plan.keep_rounds == 1 and plan.rounds > 2 and plan.sluggish and plan.quorum < plan.agents


@replaces(job, "_publish")
def publishes_in_two_transactions(publish: Any, closed: Any, new: Any) -> None:
    claim = closed.claim
    with closed.database.write() as session:
        adopted = closed.staging.adopt(session)
        for client, body in sorted(new.bodies.items()):
            stored = body.adopted(adopted[body.staged.payload_id])
            weights.assign(
                session, claim.federation_id, client, claim.number + 1, stored, database_time(session)
            )
    with patch.object(closed.staging, "adopt", lambda _: adopted):
        publish(closed, replace(new, bodies={}))


@replaces(garbage_collection, "collect")
def collects_what_is_served(_: Any, database: Any, **__: Any) -> int:
    """The bytes of a referenced row are deleted."""
    with database.write() as session:
        referenced = select(UpdateRow.payload_id).union(select(UpdateRow.state_payload_id))
        session.execute(delete(ChunkRow).where(ChunkRow.payload_id.not_in(referenced)))
    return 0


@mutant()
def collects_what_is_in_the_making() -> AbstractContextManager[None]:
    return collecting_at_once(true(), garbage_collection._REFERENCES)


@replaces(aggregation_store, "_established", rounds_end_early)
def counts_earlier_rounds_again(established: Any, *args: Any) -> Any:
    row = established(*args)
    return replace(row, facts=replace(row.facts, is_source=True))


@replaces(Cohort, "__post_init__")
def aggregates_in_any_order(_: Any, cohort: Any) -> None:
    object.__setattr__(cohort, "clients", tuple(sorted(cohort.clients, key=lambda facts: facts.client[-6:])))


@mutant()
@contextmanager
def counts_who_has_only_joined() -> Iterator[None]:
    facts = rounds._facts

    def counted(row: Any, plan: Any, joined: int, expected: int, waiting: int, delivered: int) -> Any:
        return facts(row, plan, joined, expected, 0, joined)

    with patch.object(rounds, "_facts", counted), patch.object(rounds, "is_waiting", lambda *_: False):
        yield


@replaces(lifecycle, "_collecting", rounds_end_early)
def closes_with_too_few_updates(collecting: Any, facts: Any, now: Any) -> Any:
    return Step("closing") if collecting(facts, now) is not None else None


@mutant()
@contextmanager
def serves_weights_of_others() -> Iterator[None]:
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


@replaces(retention, "_prune_federation", _rounds_are_thinned_out)
def thins_out_a_round_too_many(
    thin_out: Any, session: Any, federation_id: str, keep_rounds: int, most: int
) -> int:
    """The oldest round that should keep its tensors is pruned."""
    return int(thin_out(session, federation_id, keep_rounds - 1, most))


@replaces(retention, "_old_updates", _rounds_are_missed)
def forgets_what_an_open_round_may_need(old: Any, federation_id: str, oldest_kept: int, _: int) -> Any:
    """An update is deleted once its client delivers another, even if that one is not counted."""
    return old(federation_id, oldest_kept, _LATER)


@replaces(retention, "_old_weights", _rounds_are_thinned_out)
def never_forgets_weights(old: Any, federation_id: str, _: int) -> Any:
    """Pruning deletes updates only, and leaves the weights."""
    return old(federation_id, 0)


def _keys_end_at_once(plan: Plan, rates: FaultRates) -> bool:
    return plan.rotations > 0 and plan.at_once


def _is_true(*_: object) -> bool:
    return True


omits("takes updates of the revoked", commit, "still_member", _revoked_while("update"))
omits("lets the revoked join", join, "still_member", _revoked_while("join"))
omits("forgets that a join was answered", join, "_earlier_answer")
omits("forgets that an update is there", updates, "_as_receipt")
omits("keeps quiet of rejected updates", rounds, "reject_updates", rounds_end_early)
omits("lets a token be used twice", enrolment, "_is_repeat", lambda plan, _: plan.thief, value=_is_true)
omits("answers a signed request twice", nonces, "_is_new", lambda _, air: air.twice > 0, value=_is_true)
omits("lets replaced keys live", store, "expire_keys", _keys_end_at_once)


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """Apply a mutant until the block ends; None changes nothing."""
    with ExitStack() as stack:
        if mutant is not None:
            stack.enter_context(mutant.plant())
        yield
