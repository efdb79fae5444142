"""Let clients wait for their next round without a thread and without a transaction.

Who waits says what it saw of its federation. One look at the database asks for all federations that somebody
waits for: when this process has moved a round, and else twice a second, so that what another replica did is
found without being told.
"""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass, field
from typing import Literal

import anyio
from anyio import to_thread
from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError

from coordinator.auth.authentication import Member
from coordinator.db.engine import Database
from coordinator.observability.logs import logger
from coordinator.rounds.queries import Situation, situations

LONGEST_SECONDS = 30
"""A request waits no longer, whatever it asks for: what is between us and a client cuts idle connections."""

_LOOK_SECONDS = 0.5
_WAIT = re.compile(r"""(?:^|,)\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?=$|[,;])""", re.IGNORECASE)

Ended = Literal["changed", "waited", "released"]
"""How a wait ended; `released` = broken off: the service stops, or the client asked again elsewhere."""

log = logger(__name__)


@dataclass(eq=False, slots=True)
class _Waiter:
    federation_id: str
    seen: Situation
    ended: Ended = "waited"
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, how: Ended) -> None:
        self.ended = how
        self.over.set()


class Waiting:
    """Who waits in this process. All but `look` belongs to the event loop that runs `run`."""

    def __init__(self, database: Database, stopping: threading.Event) -> None:
        self._database = database
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._waiters: dict[str, _Waiter] = {}
        self.calls = 0
        """How often `look` was called: who reads it before the database misses nothing in between."""

    def look(self) -> None:
        """Say, from any thread and after the commit, that rounds may have moved."""
        self._loop.call_soon_threadsafe(self._note)

    async def for_change(self, member: Member, seen: Situation, calls: int, seconds: float) -> Ended:
        """Wait until a client's federation is no longer as it was seen after `calls` was read."""
        if self._stopping.is_set():
            return "released"
        waiter = _Waiter(member.federation_id, seen)
        earlier = self._waiters.get(member.client_id)
        if earlier is not None:  # one each: who reconnects all the time must not fill the memory
            earlier.end("released")
        self._waiters[member.client_id] = waiter
        if calls != self.calls:
            self._due.set()
        try:
            with anyio.move_on_after(seconds):
                await waiter.over.wait()
        finally:
            if self._waiters.get(member.client_id) is waiter:
                del self._waiters[member.client_id]
        return waiter.ended

    async def run(self) -> None:
        """Look for changes until the service stops; then nobody waits."""
        while not self._stopping.is_set():
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._due.wait()
            self._due.clear()
            if self._waiters:
                await self._compare()
        for waiter in self._waiters.values():
            waiter.end("released")

    def _note(self) -> None:
        self.calls += 1
        if self._waiters:
            self._due.set()

    async def _compare(self) -> None:
        waiters = [*self._waiters.values()]
        try:
            found = await to_thread.run_sync(
                _situations, self._database, {waiter.federation_id for waiter in waiters}
            )
        except SQLAlchemyError as error:  # a database's bad moment: they wait on
            log.warning("looking-for-rounds-failed", error=type(error).__name__)
            return
        for waiter in waiters:
            if found.get(waiter.federation_id) != waiter.seen:
                waiter.end("changed")


def seconds_of(prefer: str | None) -> int:
    """Read the preference `wait` of a Prefer field (RFC 7240), at most LONGEST_SECONDS; 0 without one."""
    found = _WAIT.search(prefer) if prefer is not None else None
    return min(int(found.group(1)), LONGEST_SECONDS) if found is not None else 0


def waiting_of(request: Request) -> Waiting:
    """Say where this process's waiting clients are."""
    waiting: Waiting = request.app.state.waiting
    return waiting


def _situations(database: Database, federation_ids: set[str]) -> dict[str, Situation]:
    with database.autocommit() as asked:
        return situations(asked, federation_ids)
