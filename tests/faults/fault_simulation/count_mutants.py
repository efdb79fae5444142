"""Faults planted in counts and their consequences, in the coordinator or on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from client_agent.rounds import summed_steps
from client_agent.secure_sum import expectation
from coordinator.secure_sum import counts, new_terms, sessions
from schemas.maths.bank import manifest
from schemas.secure_sum.counts import groups_of
from tests.faults.fault_simulation.counting import K_MIN
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.member_mutants import masked
from tests.faults.fault_simulation.planting import mutant, omits


def counted(plan: Plan, _: FaultRates) -> bool:
    return plan.summed is not None and plan.summed.counts


def _members_are_lost(plan: Plan, rates: FaultRates) -> bool:
    """Members drop out between the counts and the end of the sum."""
    is_late = plan.summed is not None and plan.summed.phase_seconds < 10 and rates.sum_late > 0
    is_revoked = plan.revoked > 0 and plan.revoked_while in "01234"
    return counted(plan, rates) and (is_late or is_revoked)


def _groups_starve(plan: Plan, rates: FaultRates) -> bool:
    """Members are late in a sum of two groups, of which both can be large enough before that."""
    is_divided = plan.summed is not None and plan.summed.bank is None and plan.agents >= 2 * K_MIN
    return is_divided and masked(plan, rates) and _members_are_lost(plan, rates) and rates.sum_late > 0


@mutant(_groups_starve)
@contextmanager
def forgets_lost_members_in_the_manifest() -> Iterator[None]:
    """Both sides count members that dropped out after the counts as present."""

    def careless(members: Mapping[str, int], counted: int, _: int, k_min: int) -> frozenset[str]:
        return manifest(members, counted, 0, k_min)

    def starved(terms: Any, members: Mapping[str, int], _: int, k_min: int) -> list[str]:
        return sorted(
            groups_of(terms.segments) - careless(members, terms.lost + len(terms.members), 0, k_min)
        )

    with (
        patch.object(new_terms, "manifest", careless),
        patch.object(summed_steps, "manifest", careless),
        patch.object(expectation, "starved_groups", starved),
        patch.object(counts, "starved_groups", starved),
    ):
        yield


@mutant(_groups_starve)
@contextmanager
def unmasks_groups_that_lost_members() -> Iterator[None]:
    """Groups are checked only when a session opens."""
    with (
        patch.object(expectation, "starved_groups", lambda *_: []),
        patch.object(counts, "starved_groups", lambda *_: []),
    ):
        yield


omits("takes counts again", new_terms, "outcome_of", counted, value=lambda *_: None)
omits("sums clients that were not counted", sessions, "countable", _members_are_lost, value=lambda *_: None)
