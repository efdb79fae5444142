"""Record values in TensorBoard's event files, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.trackers.tracker import Axis, TrackedRun

if TYPE_CHECKING:
    from tensorboard.summary import Writer


class TensorboardTracker:
    """A folder per run below `folder`: `tensorboard --logdir <folder>`. Steps and rounds share its x-axis."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Writer | None = None

    def start(self, run: TrackedRun) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(self._folder / run.path))

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, step=place)
        self._writer.flush()  # a full disk shows here, and a reader sees every value

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
