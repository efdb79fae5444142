"""Limit the memory that many bodies of this process use together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class MemoryBudget:
    """The memory that all bodies of this process may use together, and the most that each may use."""

    def __init__(self, size: int, *, share_bytes: int) -> None:
        self.share_bytes = share_bytes
        self._free = size
        self._lock = Lock()

    @contextmanager
    def share(self) -> Iterator[MemoryShare]:
        """Yield the share of one body; its memory is released afterwards."""
        share = MemoryShare(self)
        try:
            yield share
        finally:
            share.release()

    def reserve(self, size: int) -> bool:
        """Reserve memory, or return False if less is free."""
        with self._lock:
            is_free = size <= self._free
            self._free -= size if is_free else 0
        return is_free


class MemoryShare:
    """The part of a budget that one body has reserved."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.reserved = 0

    def reserve(self, size: int) -> bool:
        """Reserve more memory, or return False if less is free, or the body would have too much."""
        is_free = self.reserved + size <= self._budget.share_bytes and self._budget.reserve(size)
        self.reserved += size if is_free else 0
        return is_free

    def release(self) -> None:
        self._budget.reserve(-self.reserved)
        self.reserved = 0
