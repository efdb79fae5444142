"""What one process takes on: one at a time of what is slow, two bodies being coded at once, room for them.

Knows neither clients nor rounds: what there may be one of is the caller's to name.
"""

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

# Decoding costs memory and processor time, and so does encoding; beyond two at a time the others wait, then
# are sent away.
_DECODERS = BoundedSemaphore(2)
_PATIENCE_SECONDS = 5.0

log = logger(__name__)


@contextmanager
def decoder() -> Iterator[None]:
    """Hold one of the slots for decoding and encoding.

    Raises:
        Busy: none became free for some seconds.
    """
    if not _DECODERS.acquire(timeout=_PATIENCE_SECONDS):
        raise Busy
    try:
        yield
    finally:
        _DECODERS.release()


@dataclass(slots=True)
class _Turn:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0


class Turns:
    """Whose turn it is in this process. Belongs to the event loop: who waits holds no thread."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}

    @asynccontextmanager
    async def one_of(self, name: Hashable) -> AsyncIterator[None]:
        """Be the only one to do this; an earlier connection may take a moment to be noticed as broken.

        Raises:
            RateLimited: somebody else is at it.
        """
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            try:
                with anyio.fail_after(_PATIENCE_SECONDS):
                    await turn.lock.acquire()
            except TimeoutError:
                raise RateLimited(_PATIENCE_SECONDS, "the same is under way already") from None
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]


def turns_of(request: Request) -> Turns:
    """Say whose turn it is."""
    turns: Turns = request.app.state.turns
    return turns


async def _turns(request: Request) -> Turns:
    return turns_of(request)


TheTurns = Annotated[Turns, Depends(_turns)]
"""Whose turn it is."""


def has_space(database: Database, settings: Settings) -> bool:
    """Say whether more may be kept; when the disk is nearly full, the rest is for what was accepted before.

    A PostgreSQL server's disk is elsewhere, and says so itself.
    """
    if not database.is_sqlite or database.url.database is None:
        return True
    free = shutil.disk_usage(Path(database.url.database).absolute().parent).free
    if free < settings.storage_reserve_mib * 2**20:
        log.error("storage-full", free_mib=free >> 20)
        return False
    return True


def require_space(request: Request) -> None:
    """Make sure that more may be kept, once it is clear who sends it.

    Raises:
        StorageFull: the disk is nearly full.
    """
    if not has_space(database_of(request), settings_of(request)):
        raise StorageFull


async def _has_space(request: Request) -> None:
    require_space(request)


HasSpace = Annotated[None, Depends(_has_space)]
"""No upload is taken while the disk is nearly full. It stands behind the caller in a signature."""
