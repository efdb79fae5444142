"""Let clients wait for their next round without a thread or a transaction each.

One query compares the progress of all federations that are waited for: after a change in this process, and
twice a second for changes by other replicas.
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
from coordinator.rounds.queries import FederationProgress, fetch_progress

MAX_WAIT_SECONDS = 30
"""The longest wait of a request, whatever it prefers: proxies cut idle connections."""

_POLL_SECONDS = 0.5
_WAIT = re.compile(r"""(?:^|,)\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?=$|[,;])""", re.IGNORECASE)

WaitOutcome = Literal["changed", "waited", "released"]
"""`released` = ended early: the service stops, or the client sent another request."""

log = logger(__name__)


@dataclass(eq=False, slots=True)
class _Waiter:
    federation_id: str
    progress: FederationProgress
    outcome: WaitOutcome = "waited"
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, outcome: WaitOutcome) -> None:
        self.outcome = outcome
        self.over.set()


class LongPolls:
    """The waiting clients of this process. Only `notify` may be called outside the event loop of `run`."""

    def __init__(
        self, database: Database, stopping: threading.Event, threads: anyio.CapacityLimiter | None = None
    ) -> None:
        """Start without clients; must be called in the event loop.

        Args:
            stopping: set when the service stops.
            threads: limits the threads of the comparison; those of all requests by default.
        """
        self._database = database
        self._stopping = stopping
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._waiters: dict[str, _Waiter] = {}
        self.notifications = 0
        """Number of `notify` calls. Read it before the database to detect a change in between."""

    def notify(self) -> None:
        """Wake the comparison after a commit that may have moved a round; callable from any thread."""
        # Threads of requests call this, and events belong to the loop.
        self._loop.call_soon_threadsafe(self._on_notify)

    async def wait_for_change(
        self, member: Member, progress: FederationProgress, notifications: int, seconds: float
    ) -> WaitOutcome:
        """Wait until a client's federation differs from `progress`, read after `notifications` was."""
        if self._stopping.is_set():
            return "released"
        waiter = _Waiter(member.federation_id, progress)
        earlier = self._waiters.get(member.client_id)
        if earlier is not None:  # one per client, so that reconnecting does not fill the memory
            earlier.end("released")
        self._waiters[member.client_id] = waiter
        # A round may have moved after its progress was read and before this wait began.
        if notifications != self.notifications:
            self._due.set()
        try:
            with anyio.move_on_after(seconds):
                await waiter.over.wait()
        finally:
            if self._waiters.get(member.client_id) is waiter:
                del self._waiters[member.client_id]
        return waiter.outcome

    async def run(self) -> None:
        """Compare progress until the service stops; then release all waiting clients."""
        while not self._stopping.is_set():
            with anyio.move_on_after(_POLL_SECONDS):
                await self._due.wait()
            self._due.clear()
            if self._waiters:
                await self._compare()
        for waiter in self._waiters.values():
            waiter.end("released")

    def _on_notify(self) -> None:
        self.notifications += 1
        if self._waiters:
            self._due.set()

    async def _compare(self) -> None:
        waiters = [*self._waiters.values()]
        try:
            current = await to_thread.run_sync(
                _fetch_progress,
                self._database,
                {waiter.federation_id for waiter in waiters},
                limiter=self._threads,
            )
        except SQLAlchemyError as error:  # transient: the clients keep waiting
            log.warning("long-poll-query-failed", error=type(error).__name__)
            return
        for waiter in waiters:
            # Any change ends the wait; the request then decides what is due for its client.
            if current.get(waiter.federation_id) != waiter.progress:
                waiter.end("changed")


def seconds_of(prefer: str | None) -> int:
    """Return the preference `wait` of a Prefer field (RFC 7240), at most MAX_WAIT_SECONDS; 0 without one."""
    match = _WAIT.search(prefer) if prefer is not None else None
    return min(int(match.group(1)), MAX_WAIT_SECONDS) if match is not None else 0


def long_polls_of(request: Request) -> LongPolls:
    long_polls: LongPolls = request.app.state.long_polls
    return long_polls


def _fetch_progress(database: Database, federation_ids: set[str]) -> dict[str, FederationProgress]:
    with database.autocommit() as connection:
        return fetch_progress(connection, federation_ids)
