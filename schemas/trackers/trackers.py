"""Record values without ever delaying or failing the training: each tracker has a thread and a queue."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from types import TracebackType
from typing import Self

from schemas.trackers.tracker import Axis, TrackedRun, Tracker

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""The pause after a failure; values of this time are dropped."""

_QUEUED = 10_000
_CLOSING_SECONDS = 30.0

_Values = tuple[Axis, int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Trackers:
    """All trackers of a run; without any, values go nowhere. `prefix` stands before every name."""

    _threads: Sequence[_TrackerThread] = ()
    prefix: str = ""

    @classmethod
    def of(
        cls,
        run: TrackedRun,
        makers: Mapping[str, Callable[[], Tracker]],
        retry_seconds: float = RETRY_SECONDS,
    ) -> Trackers:
        """Return the trackers of a run, by name; each is made before its first value."""
        return cls([_TrackerThread(name, make, run, retry_seconds) for name, make in makers.items()])

    def named(self, name: str) -> Trackers:
        """Return the same trackers for one of several clients: `name/` stands before every name."""
        return Trackers(self._threads, f"{self.prefix}{name}/")

    def begin(self) -> None:
        """Start to load the libraries, and to open the run, before there is a value."""
        for thread in self._threads:
            thread.begin()

    def log(self, axis: Axis, place: int, values: Mapping[str, float]) -> None:
        """Record values of a step or round, by names such as `train/loss`; those that are not finite are not.

        Returns at once and raises nothing.
        """
        finite = {f"{self.prefix}{name}": float(value) for name, value in values.items() if isfinite(value)}
        for thread in self._threads if finite else ():
            thread.put((axis, place, finite))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the run; wait 30 s at most for values that are not written yet."""
        for thread in self._threads:
            thread.finish()
        until = time.monotonic() + _CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


NO_TRACKERS = Trackers()


class _TrackerThread:
    """One tracker and the values that wait for it."""

    def __init__(self, name: str, make: Callable[[], Tracker], run: TrackedRun, retry_seconds: float) -> None:
        self._name = name
        self._make = make
        self._run = run
        self._retry_seconds = retry_seconds
        self._queue: queue.Queue[_Values | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None
        self._tracker: Tracker | None = None
        self._next_try = -inf
        self._has_failed = False

    def begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"tracker-{self._name}", daemon=True)
            self._thread.start()

    def put(self, values: _Values) -> None:
        self.begin()
        try:
            # Never wait here: a tracker must not delay the training.
            self._queue.put_nowait(values)
        except queue.Full:
            self._warn(f"{_QUEUED} values wait for it")

    def finish(self) -> None:
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                self._warn(f"{_QUEUED} values wait for it")

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._warn("it did not end in time")

    def _work(self) -> None:
        self._try(lambda tracker: None)
        while (values := self._queue.get()) is not None:
            self._try(partial(_log, values))
        self._end()

    def _try(self, act: Callable[[Tracker], None]) -> None:
        if time.monotonic() < self._next_try:
            return
        try:
            act(self._opened())
        except Exception as error:  # a tracker's library may raise any error
            self._failed(error)

    def _opened(self) -> Tracker:
        if self._tracker is None:
            tracker = self._make()
            tracker.start(self._run)
            self._tracker = tracker
        return self._tracker

    def _failed(self, error: Exception) -> None:
        self._warn(f"{type(error).__name__}: {error}"[:500])
        # A library that waits for a dead server would fail anew for every value.
        self._next_try = time.monotonic() + self._retry_seconds
        self._end()

    def _end(self) -> None:
        tracker, self._tracker = self._tracker, None
        try:
            if tracker is not None:
                tracker.finish()
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}"[:500])

    def _warn(self, reason: str) -> None:
        if not self._has_failed:
            log.warning(
                "%s: values are lost (%s); training continues, and later values are tried again",
                self._name,
                reason,
            )
        self._has_failed = True


def _log(values: _Values, tracker: Tracker) -> None:
    tracker.log(*values)
