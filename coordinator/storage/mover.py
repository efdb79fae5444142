"""When a coordinator moves payloads to its object store, and whether that store answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.db.engine import Database
from coordinator.errors import Unavailable
from coordinator.observability.logs import logger
from coordinator.observability.metrics import Metrics
from coordinator.storage import moving

PASS_SECONDS = 60.0
"""Interval of passes."""

_SWEEP_EVERY_SECONDS = 3600.0
log = logger(__name__)


class PayloadMover:
    """Moves settled payloads of a database to the store at `url`, and sweeps there.

    `answers` is whether the store answered when it was last tried. Several replicas have one each: what
    one has moved the others leave.
    """

    def __init__(self, database: Database, url: str, metrics: Metrics) -> None:
        self._database = database
        self._url = url
        self._metrics = metrics
        self._next_sweep = time.monotonic() + _SWEEP_EVERY_SECONDS
        self.answers = True

    def work(self, is_stopping: Callable[[], bool]) -> None:
        """Try the store; if it answers, move what is settled, and delete objects that no payload has."""
        if not self._try():
            return
        moving.move_settled(self._database, self._url, is_stopping)
        if not is_stopping() and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_EVERY_SECONDS
            moving.sweep(self._database, self._url)

    def _try(self) -> bool:
        answered = self.answers
        try:
            moving.require(self._database, self._url)
        except Unavailable as error:
            self.answers = False
            if answered:
                log.warning("payload-store-away", reason=str(error))
        else:
            self.answers = True
            if not answered:
                log.info("payload-store-back")
        self._metrics.payload_store_up.set(self.answers)
        return self.answers
