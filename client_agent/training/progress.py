"""Training progress: a bar on a terminal, a few log lines elsewhere."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from client_agent.training.loop import Step

log = logging.getLogger(__name__)
_LINES = 5  # about so many log lines per round


class TrainingProgress:
    """A callback for `train(on_step=...)` that shows loss, tokens per second and remaining time."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        console = console or Console(stderr=True)
        self._bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._task = (
            self._bar.add_task(title, total=None, loss=float("nan"), speed=0.0) if self._bar else None
        )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, step: Step) -> None:
        speed = step.tokens / max(step.seconds, 1e-9)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step.number, total=step.total, loss=step.loss, speed=speed)
        elif step.number == step.total or step.number % max(1, step.total // _LINES) == 0:
            remaining = step.seconds / step.number * (step.total - step.number)
            log.info(
                "%s: step %d/%d, loss %.3f, %.0f tokens/s, %.0f s left",
                self._title,
                step.number,
                step.total,
                step.loss,
                speed,
                remaining,
            )
