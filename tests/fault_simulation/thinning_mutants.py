"""Faults planted in what is forgotten of old rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from coordinator.rounds import retention
from tests.fault_simulation.weather import Plan, Weather

_LATER = 2**31 - 1


@contextmanager
def thins_out_a_round_too_many() -> Iterator[None]:
    """The last round that should keep its tensors is taken for old."""
    thin_out = retention._prune_federation

    def greedy(session: Any, federation_id: str, keep_rounds: int, most: int) -> int:
        return thin_out(session, federation_id, keep_rounds - 1, most)

    with patch.object(retention, "_prune_federation", greedy):
        yield


@contextmanager
def forgets_what_an_open_round_may_need() -> Iterator[None]:
    """An update is superseded once its client delivers another, whether that comes to count."""
    old = retention._old_updates

    def hasty(federation_id: str, oldest_kept: int, _: int) -> Any:
        return old(federation_id, oldest_kept, _LATER)

    with patch.object(retention, "_old_updates", hasty):
        yield


@contextmanager
def never_forgets_weights() -> Iterator[None]:
    """Updates go; weights, of which there are as many, stay."""
    old = retention._old_weights

    with patch.object(retention, "_old_weights", lambda federation_id, _: old(federation_id, 0)):
        yield


def _rounds_are_thinned_out(plan: Plan, weather: Weather) -> bool:
    return plan.keep_rounds is not None


def _rounds_are_missed(plan: Plan, weather: Weather) -> bool:
    return plan.keep_rounds == 1 and plan.rounds > 2 and plan.sluggish and plan.quorum < plan.agents


THINNING_MUTANTS: tuple[
    tuple[str, Callable[[], AbstractContextManager[object]], Callable[[Plan, Weather], bool]], ...
] = (
    ("thins out a round too many", thins_out_a_round_too_many, _rounds_are_thinned_out),
    ("forgets what an open round may need", forgets_what_an_open_round_may_need, _rounds_are_missed),
    ("never forgets weights", never_forgets_weights, _rounds_are_thinned_out),
)
