"""Decide when a coordinator moves payloads to its object store, and whether it can."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.db.engine import Database
from coordinator.errors import Unavailable
from coordinator.observability.logs import logger
from coordinator.observability.metrics import Metrics
from coordinator.storage import moving
from coordinator.storage.ownership import NotOwner

PASS_SECONDS = 60.0
"""Interval of passes."""

_SWEEP_EVERY_SECONDS = 3600.0
_AWAY = "the payload store does not answer, so older tensors cannot be read; the log has the reason"
log = logger(__name__)


class PayloadMover:
    """Moves settled payloads of a database to the store at `url`, and sweeps there.

    `fault` says why it did not when it last tried, None = it did. Several replicas have one each: what
    one has moved the others leave.
    """

    def __init__(self, database: Database, url: str, metrics: Metrics) -> None:
        self._database = database
        self._url = url
        self._metrics = metrics
        self._next_sweep = time.monotonic() + _SWEEP_EVERY_SECONDS
        self.fault: str | None = None

    def work(self, is_stopping: Callable[[], bool]) -> None:
        """Try the store; if this database owns it, move what is settled, and delete what no payload has."""
        if not self._try():
            return
        try:
            moving.move_settled(self._database, self._url, is_stopping)
            if not is_stopping() and time.monotonic() >= self._next_sweep:
                self._next_sweep = time.monotonic() + _SWEEP_EVERY_SECONDS
                moving.sweep(self._database, self._url)
        except NotOwner as error:
            self._note(str(error), answers=True, owned=False)

    def _try(self) -> bool:
        try:
            moving.require(self._database, self._url)
            moving.ownership(self._database, self._url).confirm()
        except Unavailable as error:
            if self.fault != _AWAY:
                log.warning("payload-store-away", reason=str(error))
            self._note(_AWAY, answers=False, owned=True)
        except NotOwner as error:
            self._note(str(error), answers=True, owned=False)
        else:
            self._note(None, answers=True, owned=True)
        return self.fault is None

    def _note(self, fault: str | None, *, answers: bool, owned: bool) -> None:
        before, self.fault = self.fault, fault
        self._metrics.payload_store_up.set(answers)
        self._metrics.payload_store_owned.set(owned)
        if fault == before:
            return
        if not owned:
            log.error("payload-store-disputed", detail=fault)
        elif before == _AWAY:
            log.info("payload-store-back")
        elif before is not None:
            log.info("payload-store-owned")
