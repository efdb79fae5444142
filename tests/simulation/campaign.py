"""Many schedules: all seeds of a range, or as many as a mutant takes to be found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice

from tests.simulation.mutants import Mutant, planted
from tests.simulation.weather import plan_of, weather_of
from tests.simulation.world import Outcome, play

MOST_TRIES = 60
"""A mutant that lives through so many schedules in which it could show was not found."""


@dataclass(frozen=True)
class Found:
    """How a mutant was found; without an outcome it was not."""

    mutant: Mutant
    tries: int
    outcome: Outcome | None


@contextmanager
def prepared() -> Iterator[None]:
    """Make what all schedules share, so that none of them pays for it."""
    play(0)
    gc.collect()
    gc.freeze()  # models' libraries are large, and nothing of them is garbage
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 50)  # a request makes thousands of objects, of which none stays
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def schedules(first: int, number: int) -> Iterator[Outcome]:
    """Play the schedules of a range of seeds."""
    for seed in range(first, first + number):
        yield play(seed)


def seeds_for(mutant: Mutant, first: int) -> Iterator[int]:
    """The seeds in whose schedules a mutant could show."""
    for seed in count(first):
        plan = plan_of(seed)
        if mutant.where(plan, weather_of(seed, plan)):
            yield seed


def hunt(mutant: Mutant, first: int = 0, tries: int = MOST_TRIES) -> Found:
    """Play schedules with a mutant until one of them breaks a promise."""
    with planted(mutant):
        for tried, seed in enumerate(islice(seeds_for(mutant, first), tries), start=1):
            outcome = play(seed)
            if outcome.violation is not None:
                return Found(mutant, tried, outcome)
    return Found(mutant, tries, None)
