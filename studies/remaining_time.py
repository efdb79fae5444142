"""The remaining time of a run of several stages, from the time of its finished part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil

_EVERY_SECONDS = 60.0
_PRIOR_SHARE = 0.05
"""Of the planned seconds: the pace begins at the plan's, with as much weight as this share has measured."""
_END_SHARE = 0.1
"""Of a stage's seconds: what it takes after its last progress."""
_SLOW = 1.5
"""The pace from which on a machine is called slower."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run, and the seconds that it takes on two quiet cores."""

    name: str
    seconds: float


@dataclass(slots=True)
class Schedule:
    """The stages of a run in order; the first one begins at once.

    The pace is measured between reports of progress alone: imports and loading before the first step of a
    stage say nothing about its steps. A step that takes longer than the one before counts as finished now.
    """

    stages: Sequence[Stage]
    clock: Callable[[], float] = time.monotonic
    _index: int = 0
    _share: float = 0.0
    _step: float = 0.0
    _began: float = field(init=False)
    _marked: float | None = None
    _measured: float = 0.0
    _planned: float = 0.0

    def __post_init__(self) -> None:
        self._began = self.clock()

    def enter(self, name: str) -> None:
        """Begin a stage; all before it are finished."""
        self._index = next(index for index, stage in enumerate(self.stages) if stage.name == name)
        self._share, self._step, self._marked, self._began = 0.0, 0.0, None, self.clock()

    def reach(self, share: float) -> None:
        """Set how much of the stage is done, from 0 to 1; it never goes back."""
        share = min(share, 1.0)
        if share <= self._share:
            return
        now = self.clock()
        if self._marked is not None:
            self._measured += now - self._marked
            self._step = share - self._share
            self._planned += self._step * self.stages[self._index].seconds
        self._share, self._marked = share, now

    @property
    def pace(self) -> float:
        """The measured seconds per planned second; 1 before anything is measured."""
        prior = _PRIOR_SHARE * sum(stage.seconds for stage in self.stages)
        pace = (self._measured + prior) / (self._planned + prior)
        if self._marked is None or not 0 < self._step <= 1 - self._share:
            return pace
        step = self._step * self.stages[self._index].seconds
        pending = self.clock() - self._marked
        return max(pace, (self._measured + pending + prior) / (self._planned + step + prior))

    def seconds_left(self) -> float:
        """Estimate the rest: its planned seconds, at the pace of what is done."""
        return max(0.0, self._seconds_of_stage()) + self._seconds_later()

    def _seconds_of_stage(self) -> float:
        """Return what is left of the stage; negative if it takes longer than estimated."""
        seconds = self.stages[self._index].seconds * self.pace
        if self._marked is None:
            return seconds - (self.clock() - self._began)
        if self._share >= 1:
            return _END_SHARE * seconds - (self.clock() - self._marked)
        return (1 - self._share) * seconds

    def _seconds_later(self) -> float:
        return sum(stage.seconds for stage in self.stages[self._index + 1 :]) * self.pace

    def opening(self) -> str:
        """Return the expected stages and minutes, before the start."""
        names = ", ".join(stage.name for stage in self.stages)
        minutes = minutes_of(sum(stage.seconds for stage in self.stages))
        return f"{len(self.stages)} stages ({names}), {minutes} on two cores"

    def line(self) -> str:
        """Return the stage and how long the whole still takes, and whether the machine is slower."""
        stage = self.stages[self._index]
        place = f"stage {self._index + 1} of {len(self.stages)} ({stage.name})"
        if self._seconds_of_stage() < 0:
            later = self._seconds_later()
            after = f", and {minutes_of(later)} for the rest" if later else ""
            return f"{place}: takes longer than estimated{after}"
        left = f"{place}: {minutes_of(self.seconds_left())} left"
        if self.pace < _SLOW:
            return left
        return f"{left}, as this machine takes {self.pace:.1f} times as long as two quiet cores"


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
