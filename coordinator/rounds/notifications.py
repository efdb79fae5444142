"""Tell together what only changes a round's counts (joins, updates, scores), or a pack's test.

To sum up a round reads all who take part in it and all their scores: for each of a thousand that would be a
million. A change of a round's state is told in its own transaction (`control.announce`); of what only counts
each process remembers that it is to be told, and tells it twice a second at most. A process that is killed
before loses a notification, never a fact: the next event of that round shows everything.
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
from coordinator.observability.logs import logger
from coordinator.rounds import queries, store, transitions
from coordinator.rounds.long_poll import waiting_of

TOGETHER_SECONDS = 0.5
"""How far apart at least a process tells what rounds count."""

MOST_ROUNDS = 4096
"""How many rounds a process has to tell at most; what others count shows their next event."""

_MOST_HELD = 8
_MOST_PATIENCE_SECONDS = 8.0
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's error code

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """A round that counts something else than before, or an alignment pack that was tested.

    Attributes:
        subject: the round's number, or the base model whose pack it is.
        last_event: the number of the federation's last event when that was so, under the federation's lock:
            an event with a larger number shows it.
    """

    federation_id: str
    subject: int | str
    last_event: int


class PendingNotifications:
    """Of which rounds this process has to tell what they count."""

    def __init__(self) -> None:
        self._last_events: dict[tuple[str, int | str], int] = {}
        self._failed: Counter[tuple[str, int | str]] = Counter()
        self._told_at: float | None = None
        self._lock = threading.Lock()

    def note(self, change: Change) -> bool:
        """Remember a change, after its commit; say whether there was nothing to tell before."""
        with self._lock:
            is_first = not self._last_events
            which = change.federation_id, change.subject
            if which in self._last_events or len(self._last_events) < MOST_ROUNDS:
                self._last_events[which] = max(change.last_event, self._last_events.get(which, 0))
            return is_first

    def pause(self) -> float | None:
        """Give the seconds in which nothing is to be told; None = until something is noted."""
        with self._lock:
            return self._seconds_left() if self._last_events else None

    def tell(self, database: Database, *, is_due: bool = False) -> bool:
        """Write one event for each of these rounds, unless others were written too short a time ago.

        With `is_due` it is time, whenever that was. What could not be written is told later: who holds one
        federation holds up no other, and each time is waited for longer. False = something was left.
        """
        with self._lock:
            if not self._last_events or (not is_due and self._seconds_left() > 0):
                return True
            self._told_at = time.monotonic()
            left = [Change(*which, last) for which, last in self._last_events.items()]
            self._last_events.clear()
        held: list[Change] = []
        try:
            while left and len(held) < _MOST_HELD:
                which = left[0].federation_id, left[0].subject
                try:
                    _tell(database, left[0], min(2.0 ** self._failed[which], _MOST_PATIENCE_SECONDS))
                except (OperationalError, InterfaceError, PoolExhausted) as error:
                    log.warning("counts-not-told", federation=which[0], subject=which[1], reason=str(error))
                    if getattr(getattr(error, "orig", None), "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                        return False  # so it would go with all the others
                    self._failed[which] += 1
                    held.append(left[0])
                except Exception:  # it would fail for ever, and the round's next event shows the same
                    log.exception("counts-not-told", federation=which[0], subject=which[1])
                else:
                    del self._failed[which]
                del left[0]
            return not held
        finally:
            self._told_at = time.monotonic()
            for change in (*left, *held):  # whom somebody holds up comes last
                self.note(change)

    def _seconds_left(self) -> float:
        if self._told_at is None:
            return 0.0
        return max(0.0, self._told_at + TOGETHER_SECONDS - time.monotonic())


def _tell(database: Database, change: Change, patience: float) -> None:
    with database.write() as session:
        set_lock_timeout(session, patience)
        hold_federation(session, change.federation_id)
        if queries.is_told(session, change.federation_id, change.subject, change.last_event):
            return
        if isinstance(change.subject, int):
            row = store.numbered(session, change.federation_id, change.subject)
            transitions.announce(session, row, database_time(session))
        else:
            transitions.announce_pack(session, change.federation_id, change.subject)


async def _wake(request: Request) -> Callable[[], None]:
    wake_ticker: Callable[[], None] = request.app.state.ticker.wake
    waiting = waiting_of(request)

    def wake() -> None:
        wake_ticker()
        waiting.look()

    return wake


async def _notify(request: Request) -> Callable[[Change], None]:
    tell: Callable[[Change], None] = request.app.state.ticker.note
    return tell


Wake = Annotated[Callable[[], None], Depends(_wake)]
"""Call it after the commit: what is woken looks at the database at once."""

Tell = Annotated[Callable[[Change], None], Depends(_notify)]
"""Call it after a commit that changed what a round counts, not its state: it is told soon, with others."""
