"""What all parts of a run of the demo share: silos, folders, the agents' command and the narrator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.agents import Program
from examples.demo.cast import Cast
from examples.demo.narration import Narrator


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
