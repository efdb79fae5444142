"""Tell together what only changes a round's counts: joins, updates, scores. Knows no thread.

To sum up a round reads all who take part in it and all their scores: for each of a thousand that would be a
million. A change of a round's state is told in its own transaction (`control.announce`); of what only counts
each process remembers that it is to be told, and tells it twice a second at most. A process that is killed
before loses a notification, never a fact: the next event of that round shows everything.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from coordinator.database import Database, now
from coordinator.locks import hold_federation, wait_briefly
from coordinator.rounds import control, queries, store

TOGETHER_SECONDS = 0.5
"""How far apart at least a process tells what rounds count."""

MOST_ROUNDS = 4096
"""How many rounds a process has to tell at most; what others count shows their next event."""


@dataclass(frozen=True, slots=True)
class Change:
    """A round that counts something else than before.

    Attributes:
        last_event: the number of the federation's last event when that was so, under the federation's lock:
            an event with a larger number shows it.
    """

    federation_id: str
    number: int
    last_event: int


class Untold:
    """Of which rounds this process has to tell what they count."""

    def __init__(self) -> None:
        self._last_events: dict[tuple[str, int], int] = {}
        self._told_at: float | None = None
        self._lock = threading.Lock()

    def note(self, change: Change) -> bool:
        """Remember a change, after its commit; say whether there was nothing to tell before."""
        with self._lock:
            is_first = not self._last_events
            which = change.federation_id, change.number
            if which in self._last_events or len(self._last_events) < MOST_ROUNDS:
                self._last_events[which] = max(change.last_event, self._last_events.get(which, 0))
            return is_first

    def pause(self, longest: float) -> float:
        """Give the seconds in which nothing is to be told, at most `longest`."""
        with self._lock:
            return min(longest, self._seconds_left()) if self._last_events else longest

    def tell(self, database: Database, *, is_due: bool = False) -> None:
        """Write one event for each of these rounds, unless others were written too short a time ago.

        With `is_due` it is time, whenever that was. What could not be written is told later.
        """
        with self._lock:
            if not self._last_events or (not is_due and self._seconds_left() > 0):
                return
            self._told_at = time.monotonic()
            changes = [Change(*which, last) for which, last in self._last_events.items()]
            self._last_events.clear()
        for place, change in enumerate(changes, 1):
            try:
                _tell(database, change)
            except BaseException:
                for left in (*changes[place:], change):  # whom somebody holds up comes last
                    self.note(left)
                raise

    def _seconds_left(self) -> float:
        if self._told_at is None:
            return 0.0
        return max(0.0, self._told_at + TOGETHER_SECONDS - time.monotonic())


def _tell(database: Database, change: Change) -> None:
    with database.write() as session:
        wait_briefly(session)
        hold_federation(session, change.federation_id)
        if not queries.is_told(session, change.federation_id, change.number, change.last_event):
            row = store.numbered(session, change.federation_id, change.number)
            control.announce(session, row, now(session))
