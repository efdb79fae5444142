"""Have what threads would do one after the other done by few of them for all that wait. Knows no database.

Updates of a round are kept under one lock, and each commit waits for the disk while it holds it: kept one by
one, a thousand that arrive at once wait a thousand times.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from coordinator.errors import Busy
from coordinator.observability.logs import logger

One = TypeVar("One")
Done = TypeVar("Done")

_PATIENCE_SECONDS = 5.0

log = logger(__name__)


@dataclass(slots=True, eq=False)
class _Place:
    """Somebody in a line: `turn` comes when it was served, is to go alone, or is to serve others."""

    one: Any
    turn: threading.Event = field(default_factory=lambda: threading.Event())
    outcome: Any = None
    is_served: bool = False
    is_alone: bool = False


@dataclass(slots=True)
class _Line:
    serving: int = 0
    waiting: deque[_Place] = field(default_factory=deque)


class Together:
    """Lines of threads. Some of each serve themselves and those who wait, then the next of them do.

    What fails for several is done again for each alone: nobody gets another's error.
    """

    def __init__(self, *, servers: int, most: int) -> None:
        """Let `servers` of a line serve at the same time, and each of them `most` at a time."""
        self._servers = servers
        self._most = most
        self._lines: dict[Hashable, _Line] = {}
        self._lock = threading.Lock()

    def done(self, line: Hashable, one: One, do: Callable[[Sequence[One]], Sequence[Done]]) -> Done:
        """Have `one` done, with others of its line if there are any; `do` gives as many as it is given.

        Raises:
            Busy: its turn did not come for some seconds.
            what `do` raises for `one` alone.
        """
        place = _Place(one)
        if not self._enter(line, place):
            self._wait(line, place)
        if not (place.is_served or place.is_alone):
            self._serve(line, place, do)
        if place.is_alone:
            (place.outcome,) = do([one])
        return cast("Done", place.outcome)

    def _enter(self, name: Hashable, place: _Place) -> bool:
        """Join a line; say whether to serve at once."""
        with self._lock:
            line = self._lines.setdefault(name, _Line())
            if line.serving < self._servers:
                line.serving += 1
                return True
            line.waiting.append(place)
            return False

    def _wait(self, name: Hashable, place: _Place) -> None:
        if place.turn.wait(_PATIENCE_SECONDS):
            return
        with self._lock:
            line = self._lines.get(name)
            if line is not None and place in line.waiting:
                line.waiting.remove(place)
                raise Busy
        place.turn.wait()  # somebody is serving it

    def _serve(self, name: Hashable, first: _Place, do: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """Serve somebody, who calls, and those who wait."""
        with self._lock:
            waiting = self._lines[name].waiting
            some = [first, *(waiting.popleft() for _ in range(min(len(waiting), self._most - 1)))]
        try:
            outcomes = do([place.one for place in some])
            for place, outcome in zip(some, outcomes, strict=True):
                place.outcome, place.is_served = outcome, True
        except Exception as error:
            if len(some) == 1:
                raise
            log.info("done-one-by-one", number=len(some), reason=type(error).__name__)
        finally:
            for place in some:
                place.is_alone = not place.is_served
            for place in (*some[1:], *self._leave(name)):
                place.turn.set()

    def _leave(self, name: Hashable) -> list[_Place]:
        """Serve no more; give who is to instead."""
        with self._lock:
            line = self._lines[name]
            if line.waiting:
                return [line.waiting.popleft()]
            line.serving -= 1
            if not line.serving:
                del self._lines[name]
            return []
