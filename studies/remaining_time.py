"""The remaining time of a run of several stages, from the time of its finished part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil

_EVERY_SECONDS = 60.0
_PRIOR_SHARE = 0.2
"""Of the planned seconds: the pace begins at the plan's, with as much weight as this share has measured."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run, and the seconds that it takes on two quiet cores."""

    name: str
    seconds: float


@dataclass(slots=True)
class Schedule:
    """The stages of a run in order; the first one begins at once."""

    stages: Sequence[Stage]
    clock: Callable[[], float] = time.monotonic
    _index: int = 0
    _share: float = 0.0
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def enter(self, name: str) -> None:
        """Begin a stage; all before it are finished."""
        self._index = next(index for index, stage in enumerate(self.stages) if stage.name == name)
        self._share = 0.0

    def reach(self, share: float) -> None:
        """Set how much of the stage is done, from 0 to 1; it never goes back."""
        self._share = max(self._share, min(share, 1.0))

    def seconds_left(self) -> float:
        """Estimate the rest: the planned seconds of it, at the pace of what is done."""
        planned = sum(stage.seconds for stage in self.stages)
        done = sum(stage.seconds for stage in self.stages[: self._index])
        done += self.stages[self._index].seconds * self._share
        prior = _PRIOR_SHARE * planned
        # A prior of the planned pace: the first minutes alone would give wild estimates.
        pace = (self.clock() - self._began + prior) / (done + prior)
        return (planned - done) * pace

    def opening(self) -> str:
        """Return the expected stages and minutes, before the start."""
        names = ", ".join(stage.name for stage in self.stages)
        minutes = minutes_of(sum(stage.seconds for stage in self.stages))
        return f"{len(self.stages)} stages ({names}), {minutes} on two cores"

    def line(self) -> str:
        """Return the stage and how long the whole still takes."""
        stage = self.stages[self._index]
        place = f"stage {self._index + 1} of {len(self.stages)} ({stage.name})"
        return f"{place}: {minutes_of(self.seconds_left())} left"


def minutes_of(seconds: float) -> str:
    """Return a duration in words, rounded up to minutes."""
    minutes = ceil(seconds / 60)
    return f"about {minutes} minutes" if minutes > 1 else "about a minute"


@contextmanager
def every_minute(act: Callable[[], object], seconds: float = _EVERY_SECONDS) -> Iterator[None]:
    """Call `act` in a thread once a minute while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
