"""Wait for the pivot's alignment pack, which clients of the pivot's base model make."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from client_agent.errors import PivotPackAwaited

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1800.0
"""How long an agent waits for the pivot's pack; then it warns, or makes it itself if the plan allows that."""

STAGGER_SECONDS = 900.0
"""The range of each agent's random additional patience: a pack made meanwhile spares the others the work."""

_FIRST_REMINDER_SECONDS = 60.0
_LONGEST_SILENCE_SECONDS = 600.0


def _stagger() -> float:
    # Of a generator of its own: agents may have seeded the shared one alike.
    return random.Random().uniform(0.0, STAGGER_SECONDS)


@dataclass(slots=True)
class PivotWait:
    """The time that this agent has waited for the pivot's pack, logged at growing intervals.

    Attributes:
        patience_seconds: how long it waits before `is_over`.
    """

    patience_seconds: float = field(default_factory=lambda: PATIENCE_SECONDS + _stagger())
    clock: Callable[[], float] = time.monotonic
    _began: float | None = None
    _next_line: float = 0.0

    @property
    def seconds(self) -> float:
        return self.clock() - self._began if self._began is not None else 0.0

    @property
    def is_over(self) -> bool:
        return self._began is not None and self.seconds >= self.patience_seconds

    def goes_on(self, awaited: PivotPackAwaited) -> None:
        """Log that the pack is not stored yet, if the last line about it is old enough."""
        if self._began is None:
            self._began = self.clock()
            log.info("%s; waiting for it", awaited)
            self._next_line = _FIRST_REMINDER_SECONDS
        elif self.seconds >= self._next_line:
            level = logging.WARNING if self.is_over else logging.INFO
            log.log(
                level, "waiting for the pack of the pivot %s since %s", awaited.pivot, _text(self.seconds)
            )
            if self.is_over:
                log.warning("%s", awaited)
            self._next_line = self.seconds + min(self.seconds, _LONGEST_SILENCE_SECONDS)

    def ended(self) -> None:
        """Log that the wait is over, if there was one."""
        if self._began is not None:
            log.info("the pivot's pack is stored, after %s", _text(self.seconds))
            self._began = None


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
