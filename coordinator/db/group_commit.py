"""Group commit: threads that arrive at the same time share one call, as their commits share one disk sync.

Without it, a thousand updates of a round that arrive at once wait for a thousand syncs under one lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from coordinator.errors import Busy
from coordinator.observability.logs import logger

Item = TypeVar("Item")
Result = TypeVar("Result")

_DATABASE_FAILED = (OperationalError, InterfaceError, PoolExhausted)
log = logger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """A queued item. `turn` is set once it is done, must run alone, or its thread must lead a batch."""

    item: Any
    size: int = 0
    turn: threading.Event = field(default_factory=lambda: threading.Event())
    result: Any = None
    error: Exception | None = None
    is_done: bool = False
    is_alone: bool = False


@dataclass(slots=True)
class _Queue:
    leaders: int = 0
    waiting: deque[_Entry] = field(default_factory=deque)


class GroupCommit:
    """Queues of threads, by key. Some threads of a queue lead: each runs a batch, then hands over.

    A batch that fails is run again item by item, so no thread receives the error of another item. A failure
    of the database is the error of every item.

    Args:
        max_batch: the largest number of items of a batch.
        max_bytes: the largest size of a batch that has more than one item; None = no limit.
        max_wait_seconds: how long an item waits for a batch.
    """

    def __init__(
        self, *, max_leaders: int, max_batch: int, max_bytes: int | None = None, max_wait_seconds: float = 5.0
    ) -> None:
        self._max_leaders = max_leaders
        self._max_wait_seconds = max_wait_seconds
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._queues: dict[Hashable, _Queue] = {}
        self._lock = threading.Lock()

    def run(
        self, key: Hashable, item: Item, call: Callable[[Sequence[Item]], Sequence[Result]], *, size: int = 0
    ) -> Result:
        """Run `call` for an item, together with waiting items of the same key, and return its result.

        Args:
            call: returns one result per item, in order.
            size: bytes that the item has.

        Raises:
            Busy: no batch took the item within some seconds.
            Exception: what `call` raises for this item alone, or a failure of the database.
        """
        entry = _Entry(item, size)
        if not self._enter(key, entry):
            self._wait(key, entry)
        if not (entry.is_done or entry.is_alone):
            self._serve(key, entry, call)
        if entry.is_alone:
            (entry.result,) = call([item])
        if entry.error is not None:
            raise entry.error
        return cast("Result", entry.result)

    def _enter(self, key: Hashable, entry: _Entry) -> bool:
        with self._lock:
            queue = self._queues.setdefault(key, _Queue())
            if queue.leaders < self._max_leaders:
                queue.leaders += 1
                return True
            queue.waiting.append(entry)
            return False

    def _wait(self, key: Hashable, entry: _Entry) -> None:
        if entry.turn.wait(self._max_wait_seconds):
            return
        with self._lock:
            queue = self._queues.get(key)
            if queue is not None and entry in queue.waiting:
                queue.waiting.remove(entry)
                raise Busy
        entry.turn.wait()  # a batch took it meanwhile

    def _serve(self, key: Hashable, first: _Entry, call: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        with self._lock:
            batch = [first, *self._next(self._queues[key].waiting, first.size)]
        try:
            results = call([entry.item for entry in batch])
            for entry, result in zip(batch, results, strict=True):
                entry.result, entry.is_done = result, True
        except _DATABASE_FAILED as error:
            # Nothing is tried again: each item would wait for the same lock, and a commit whose answer was
            # lost may have succeeded.
            for entry in batch:
                entry.error, entry.is_done = error, True
        except Exception as error:
            # Another item may be at fault: each is run alone, and gets its own error.
            if len(batch) == 1:
                raise
            log.info("group-commit-split", number=len(batch), reason=type(error).__name__)
        finally:
            # Whatever has happened, no thread of the batch may wait for ever.
            for entry in batch:
                entry.is_alone = not entry.is_done
            for entry in (*batch[1:], *self._leave(key)):
                entry.turn.set()

    def _next(self, waiting: deque[_Entry], size: int) -> Iterator[_Entry]:
        """Take the waiting items that fit into a batch, which has one of this size."""
        for _ in range(min(len(waiting), self._max_batch - 1)):
            size += waiting[0].size
            if self._max_bytes is not None and size > self._max_bytes:
                return
            yield waiting.popleft()

    def _leave(self, key: Hashable) -> list[_Entry]:
        """Stop leading; return the entry whose thread leads next, if one waits."""
        with self._lock:
            queue = self._queues[key]
            if queue.waiting:
                return [queue.waiting.popleft()]
            queue.leaders -= 1
            if not queue.leaders:
                del self._queues[key]
            return []
