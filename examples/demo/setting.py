"""What all parts of a run of the demo share: silos, folders, the agents' command and the narrator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.agents import Program
from examples.demo.cast import Cast
from examples.demo.narration import Narrator
from studies.remaining_time import Schedule, Stage

MODEL: Final = "base model"
FEDERATION: Final = "federation"
TRAINING_ALONE: Final = "training alone"
ANSWERS: Final = "answers"


def schedule(*, has_model: bool, quick: bool) -> Schedule:
    """Return the stages of a run of the demo, with their seconds on two quiet cores."""
    stages = [] if has_model else [Stage(MODEL, 30)]
    if quick:
        return Schedule([*stages, Stage(FEDERATION, 35), Stage(ANSWERS, 10)])
    return Schedule([*stages, Stage(FEDERATION, 290), Stage(TRAINING_ALONE, 210), Stage(ANSWERS, 20)])


@dataclass(frozen=True, slots=True)
class Setting:
    """A run of the demo; everything is written below `out`."""

    cast: Cast
    out: Path
    tessera: Program
    narrator: Narrator

    @property
    def data(self) -> Path:
        return self.out / "data"

    @property
    def federated(self) -> Path:
        return self.out / "federated"

    @property
    def alone(self) -> Path:
        return self.out / "alone"

    @property
    def names(self) -> list[str]:
        return [desk.name for desk in self.cast.helpdesks]
