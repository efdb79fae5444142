"""Many schedules in several processes: a range of seeds, or the seeds until a mutant is found."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from multiprocessing import get_context

from tests.faults.fault_simulation.fault_rates import fault_rates_of, plan_of
from tests.faults.fault_simulation.mutants import planted
from tests.faults.fault_simulation.planting import MUTANTS, Mutant
from tests.faults.fault_simulation.storage import leave_workplace
from tests.faults.fault_simulation.world import Outcome, run_schedule

MOST_TRIES = 120
"""A mutant that lives through so many schedules in which it could show was not found."""


FACTS = (
    "clock jumps",
    "disk full",
    "coded updates",
    "errors carried on",
    "packs stored",
    "replica dies",
    "agent dies",
)
"""Beginnings of what happens in any forty schedules: a campaign without one of these plays too little."""
ENOUGH = 40


def missing(facts: Mapping[str, int]) -> list[str]:
    """Return which of `FACTS` never happened."""
    return [
        fact for fact in FACTS if not any(name.startswith(fact) for name, times in facts.items() if times)
    ]


@dataclass(frozen=True)
class HuntResult:
    """How a mutant was found; without an outcome it was not."""

    mutant: str
    tries: int
    outcome: Outcome | None


@contextmanager
def prepared() -> Iterator[None]:
    """Make what all schedules share, so that none of them pays for it."""
    run_schedule(0)
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
        yield run_schedule(seed)


@contextmanager
def workers(number: int) -> Iterator[ProcessPoolExecutor]:
    """Prepare processes, each with a database and disks of its own.

    They are forked with the first work that they are given; no thread should run by then.
    """
    with ProcessPoolExecutor(number, get_context("fork"), initializer=_prepare) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_PREPARED = ExitStack()


def _prepare() -> None:
    """Stay prepared until this process ends."""
    leave_workplace()
    _PREPARED.enter_context(prepared())


def schedules_by(pool: ProcessPoolExecutor, first: int, number: int) -> Iterator[Outcome]:
    """Play the schedules of a range of seeds in processes, and return the outcomes in their order."""
    return pool.map(run_schedule, range(first, first + number))


def hunts_by(pool: ProcessPoolExecutor, first: int) -> Iterator[HuntResult]:
    """Hunt every mutant in processes, and return what was found in their order."""
    return pool.map(partial(_hunt_numbered, first), range(len(MUTANTS)))


def _hunt_numbered(first: int, number: int) -> HuntResult:
    return hunt(MUTANTS[number], first)


def seeds_for(mutant: Mutant, first: int) -> Iterator[int]:
    """The seeds in whose schedules a mutant could show."""
    for seed in count(first):
        plan = plan_of(seed)
        if mutant.where(plan, fault_rates_of(seed, plan)):
            yield seed


def hunt(mutant: Mutant, first: int = 0, tries: int = MOST_TRIES) -> HuntResult:
    """Play schedules with a mutant until one of them breaks a promise."""
    with planted(mutant):
        for tried, seed in enumerate(islice(seeds_for(mutant, first), tries), start=1):
            outcome = run_schedule(seed)
            if outcome.violation is not None:
                return HuntResult(mutant.name, tried, outcome)
    return HuntResult(mutant.name, tries, None)
