"""A lease that its holder extends during long work; another worker may claim the work once it has run out."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.rounds.store import LostRace


class Lease:
    """Extends a claim during the work, at the latest after a third of its time.

    Args:
        extend_by: extends the claim by seconds in the database; raises LostRace once another worker has it.
        seconds: how long a claim lasts.
    """

    def __init__(self, extend_by: Callable[[float], None], seconds: float) -> None:
        self._extend_by = extend_by
        self._seconds = seconds
        self._last = time.monotonic()

    def extend(self) -> None:
        """Extend the lease if a third of it has passed.

        Raises:
            LostRace: another worker has the work, or it has ended.
        """
        # Two thirds remain for a database that is slow, or does not answer for a moment.
        if time.monotonic() - self._last > self._seconds / 3:
            self._extend_by(self._seconds)
            self._last = time.monotonic()

    def release(self) -> None:
        """End the lease, so that another worker can claim the work; no effect after it was lost."""
        try:
            self._extend_by(0.0)
        except LostRace:
            return
