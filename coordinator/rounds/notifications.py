"""Batch the events of changed counts (joins, updates, scores) and of pack tests.

Summing up a round reads all its participations and scores, so one event per change would cost the square of
the clients. Changes wait in memory for at most half a second. A process that is killed loses a notification,
never a fact: the next event of the round contains it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import hold_federation, set_lock_timeout
from coordinator.errors import NotFound
from coordinator.observability.logs import logger
from coordinator.rounds import queries, store, transitions
from coordinator.rounds.long_poll import long_polls_of

INTERVAL_SECONDS = 0.5
"""Shortest time between two batches of one process."""

MAX_PENDING = 4096
"""Most rounds and packs with pending changes; further ones are dropped, as their next event has them."""

_MAX_BLOCKED = 8
_MAX_LOCK_WAIT_SECONDS = 8.0
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's error code

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """A round whose counts changed, or an alignment pack that was tested.

    Attributes:
        subject: round number, or base model of the pack.
        last_event: number of the federation's last event, read under its lock with the change: an event with
            a larger number contains it.
    """

    federation_id: str
    subject: int | str
    last_event: int


class PendingNotifications:
    """The changes of which this process has yet to write events."""

    def __init__(self) -> None:
        self._last_events: dict[tuple[str, int | str], int] = {}
        self._failed: Counter[tuple[str, int | str]] = Counter()
        self._published_at: float | None = None
        self._lock = threading.Lock()

    def add(self, change: Change) -> bool:
        """Add a change after its commit; return whether no other was pending."""
        with self._lock:
            is_first = not self._last_events
            # Changes of one round are one event: the newest last event decides whether one is still needed.
            key = change.federation_id, change.subject
            if key in self._last_events or len(self._last_events) < MAX_PENDING:
                self._last_events[key] = max(change.last_event, self._last_events.get(key, 0))
            return is_first

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next batch; None = no change is pending."""
        with self._lock:
            return self._seconds_left() if self._last_events else None

    def publish(self, database: Database, *, is_due: bool = False) -> bool:
        """Write one event per pending change, if the last batch is old enough or `is_due`.

        A change whose federation stays locked is added again, last, and waits longer for the lock next time.

        Returns:
            Whether no change is left.
        """
        with self._lock:
            if not self._last_events or (not is_due and self._seconds_left() > 0):
                return True
            self._published_at = time.monotonic()
            pending = [Change(*key, last) for key, last in self._last_events.items()]
            self._last_events.clear()
        blocked: list[Change] = []
        try:
            while pending and len(blocked) < _MAX_BLOCKED:
                key = pending[0].federation_id, pending[0].subject
                try:
                    # A federation that stays locked gets a longer wait each time, so that it is not left
                    # out for ever.
                    _publish(database, pending[0], min(2.0 ** self._failed[key], _MAX_LOCK_WAIT_SECONDS))
                except (OperationalError, InterfaceError, PoolExhausted) as error:
                    log.warning("notification-delayed", federation=key[0], subject=key[1], reason=str(error))
                    if getattr(getattr(error, "orig", None), "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                        return False  # the database is unavailable: the remaining changes would fail too
                    self._failed[key] += 1
                    blocked.append(pending[0])
                except NotFound:  # the federation was removed, and nobody follows it
                    self._failed.pop(key, None)
                except Exception:  # a retry would fail too; the round's next event contains the change
                    log.exception("notification-dropped", federation=key[0], subject=key[1])
                else:
                    del self._failed[key]
                del pending[0]
            return not blocked
        finally:
            self._published_at = time.monotonic()
            for change in (*pending, *blocked):
                self.add(change)

    def _seconds_left(self) -> float:
        if self._published_at is None:
            return 0.0
        return max(0.0, self._published_at + INTERVAL_SECONDS - time.monotonic())


def _publish(database: Database, change: Change, lock_wait_seconds: float) -> None:
    with database.write() as session:
        set_lock_timeout(session, lock_wait_seconds)
        hold_federation(session, change.federation_id)
        # An event that was written after the change, such as one of a new state, contains it.
        if queries.has_event(session, change.federation_id, change.subject, change.last_event):
            return
        if isinstance(change.subject, int):
            row = store.get_round(session, change.federation_id, change.subject)
            transitions.announce(session, row, database_time(session))
        else:
            transitions.announce_pack(session, change.federation_id, change.subject)


async def _wake(request: Request) -> Callable[[], None]:
    wake_ticker: Callable[[], None] = request.app.state.ticker.wake
    long_polls = long_polls_of(request)

    def wake() -> None:
        wake_ticker()
        long_polls.notify()

    return wake


async def _notify(request: Request) -> Callable[[Change], None]:
    notify: Callable[[Change], None] = request.app.state.ticker.note
    return notify


Wake = Annotated[Callable[[], None], Depends(_wake)]
"""Call it after the commit: the workers and long polls that it wakes read the database at once."""

Notify = Annotated[Callable[[Change], None], Depends(_notify)]
"""Call it after a commit that changed a round's counts, not its state: an event follows in the next batch."""
