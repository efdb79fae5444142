"""The interface of a tracker: three methods, and numbers. No text of an example can enter a tracker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Facts = Mapping[str, str | int | float]
"""What a run is of: names and settings, never data."""

Axis = Literal["step", "round"]
"""What a number belongs to: a training step, or a round."""

_UNSAFE = re.compile(r"[^\w.-]")


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One run of a tracker.

    Attributes:
        project: groups runs: a federation, or a study.
        name: the name that people see, unique in the project.
        id: stays the same over restarts, so that values are added to the run; unique over all projects.
        facts: what the run is of.
    """

    project: str
    name: str
    id: str
    facts: Facts = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Project and name as two parts of a file's path."""
        return f"{_UNSAFE.sub('_', self.project)}/{_UNSAFE.sub('_', self.name)}"


class Tracker(Protocol):
    """One library. Any method may raise anything: `Trackers` warns, and training continues."""

    def start(self, run: TrackedRun) -> None:
        """Open a run, or continue the one with its id."""

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        """Record finite values of step or round number `place`, by names such as `train/loss`."""

    def finish(self) -> None:
        """Write what is not written yet, and end the run."""
