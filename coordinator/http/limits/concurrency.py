"""Limit the concurrency of slow work in this process: keyed locks, codec slots, and free disk space."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore
from typing import Annotated

import anyio
from fastapi import Depends, Request

from coordinator.db.engine import Database
from coordinator.errors import Busy, RateLimited, StorageFull
from coordinator.http.dependencies import database_of, settings_of
from coordinator.observability.logs import logger
from coordinator.settings import Settings

# Coding costs memory and processor time: beyond two at a time, requests wait and are then refused.
_DECODERS = BoundedSemaphore(2)
_PATIENCE_SECONDS = 5.0

log = logger(__name__)


@contextmanager
def codec_slot() -> Iterator[None]:
    """Hold one of the slots for encoding and decoding.

    Raises:
        Busy: no slot became free in time.
    """
    if not _DECODERS.acquire(timeout=_PATIENCE_SECONDS):
        raise Busy
    try:
        yield
    finally:
        _DECODERS.release()


@dataclass(slots=True)
class _LockEntry:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0


class KeyedLock:
    """Locks by key, for the event loop: waiting holds no thread."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _LockEntry] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of a key; a broken earlier connection may take a moment to release it.

        Raises:
            RateLimited: another request holds the lock.
        """
        entry = self._locks.setdefault(key, _LockEntry())
        # Counted before waiting: another request must not drop the entry meanwhile.
        entry.users += 1
        try:
            try:
                with anyio.fail_after(_PATIENCE_SECONDS):
                    await entry.lock.acquire()
            except TimeoutError:
                raise RateLimited(
                    _PATIENCE_SECONDS, "the same request is already in progress; retry when it has ended"
                ) from None
            try:
                yield
            finally:
                entry.lock.release()
        finally:
            entry.users -= 1
            if not entry.users:
                # Keys are unbounded, so that an entry goes with its last user.
                del self._locks[key]


def locks_of(request: Request) -> KeyedLock:
    locks: KeyedLock = request.app.state.locks
    return locks


async def _locks(request: Request) -> KeyedLock:
    return locks_of(request)


TheLocks = Annotated[KeyedLock, Depends(_locks)]
"""The keyed locks of this process."""


def has_space(database: Database, settings: Settings) -> bool:
    """Whether the disk has room for new uploads, beyond the reserve for work already accepted.

    A PostgreSQL server's disk is elsewhere; its errors report a full disk.
    """
    if not database.is_sqlite or database.url.database is None:
        return True
    free = shutil.disk_usage(Path(database.url.database).absolute().parent).free
    if free < settings.storage_reserve_mib * 2**20:
        log.error("storage-full", free_mib=free >> 20)
        return False
    return True


def require_space(request: Request) -> None:
    """Raise StorageFull if the disk is nearly full."""
    if not has_space(database_of(request), settings_of(request)):
        raise StorageFull


async def _has_space(request: Request) -> None:
    require_space(request)


HasSpace = Annotated[None, Depends(_has_space)]
"""Refuses uploads while the disk is nearly full; it follows the caller in a route's signature."""
