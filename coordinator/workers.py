"""Threads that nobody has to nurse: one moves rounds whose time has come, one aggregates them, one tidies,
and one tells what rounds count.

The first three look at the database when they are woken and every tick, so that what happens on another
replica, and what was going on when a process died, is found without being told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from coordinator.aggregation import job
from coordinator.aggregation.job import Claim, Lease
from coordinator.auth import failure_limit, nonces
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.observability.logs import logger, scope
from coordinator.observability.metrics import Metrics
from coordinator.rounds import retention, transitions
from coordinator.rounds import store as rounds
from coordinator.rounds.lifecycle import next_state
from coordinator.rounds.notifications import Change, PendingNotifications
from coordinator.storage import event_log, garbage_collection

_COLLECT_EVERY_SECONDS = 600.0
log = logger(__name__)


class Stopped(Exception):
    """The service is stopping; the work is left to the next worker."""


class Ticker:
    """Drives rounds from `start` to `stop`; `wake` says that something may be due.

    It calls `moved` after every commit in which a round may have opened or a federation ended.
    """

    def __init__(
        self,
        database: Database,
        *,
        lease_seconds: float,
        tick_seconds: float,
        block_bytes: int,
        keep_rounds: int | None = None,
        metrics: Metrics,
        moved: Callable[[], None],
    ) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._block_bytes = block_bytes
        self._keep_rounds = keep_rounds
        self._metrics = metrics
        self._moved = moved
        self._untold = PendingNotifications()
        self._stopping = threading.Event()
        self._next_collection = time.monotonic() + _COLLECT_EVERY_SECONDS
        self._tick_seconds = tick_seconds
        self._telling = _Loop("telling", self._tell, self._untold.pause, self._stopping)
        self._loops = [
            _Loop("rounds", self._drive, self._tick, self._stopping),
            _Loop("aggregation", self._aggregate, self._tick, self._stopping),
            _Loop("tidying", self._tidy, self._tick, self._stopping),
            self._telling,
        ]

    def start(self) -> None:
        """Begin."""
        if self._database.is_sqlite:  # no other process serves this file, so no other worker is alive
            with self._database.write() as session:
                rounds.expire_leases(session)
        for loop in self._loops:
            loop.start()

    def wake(self) -> None:
        """Look at the database now."""
        for loop in self._loops:
            loop.wake()

    def note(self, change: Change) -> None:
        """See to it that a change is told soon."""
        if self._untold.note(change):
            self._telling.wake()

    def stop(self) -> None:
        """End; tell what is untold; give up an aggregation in progress, for any worker to claim at once."""
        self._stopping.set()
        self.wake()
        for loop in self._loops:
            loop.join()
        try:
            self._untold.tell(self._database, is_due=True)
        except Exception:
            log.exception("counts-not-told")

    def _tick(self) -> float:
        return self._tick_seconds

    def _drive(self) -> bool:
        moved = drive(self._database)
        if moved:
            self.wake()
            self._moved()
        return False

    def _tell(self) -> bool:
        self._untold.tell(self._database)
        return False

    def _tidy(self) -> bool:
        """Forget and delete a little of what nobody needs, now and then; say whether there may be more."""
        if time.monotonic() < self._next_collection:
            return False
        self._next_collection = time.monotonic() + _COLLECT_EVERY_SECONDS
        while not self._stopping.is_set() and failure_limit.delete_expired(self._database):
            pass
        signed = 0
        while not self._stopping.is_set() and (gone := nonces.delete_expired(self._database)):
            signed += gone
        forgotten = retention.thin_out(self._database, self._keep_rounds) if self._keep_rounds else 0
        collected = garbage_collection.collect(self._database)
        forgotten += event_log.delete_old(self._database)
        if signed or forgotten or collected:
            log.info("tidied", signed=signed, forgotten=forgotten, collected=collected)
        if not forgotten and not collected:
            return False
        self._next_collection = time.monotonic()
        return True

    def _aggregate(self) -> bool:
        """Aggregate one round; say whether there may be another."""
        claim = job.claim_due(self._database, self._lease_seconds)
        if claim is None:
            return False
        with scope(federation=claim.federation_id, round=claim.number):
            self._work(claim)
        return True

    def _work(self, claim: Claim) -> None:
        lease = Lease(self._database, claim, self._lease_seconds)

        def between() -> None:
            if self._stopping.is_set():
                raise Stopped
            lease.keep()

        began = time.monotonic()
        try:
            alone = job.aggregate(self._database, claim, block_bytes=self._block_bytes, between=between)
        except rounds.LostRace:
            log.info("aggregation-overtaken")
        except Stopped:
            lease.give_up()
        except (OperationalError, InterfaceError, PoolExhausted):
            log.exception("aggregation-interrupted")  # the lease runs out, and the round is claimed again
        except Exception:
            log.exception("aggregation-failed")
            job.abandon(self._database, claim)
            self._moved()
        else:
            self._moved()
            seconds = time.monotonic() - began
            self._metrics.aggregation_seconds.observe(seconds)
            log.info("round-published", seconds=round(seconds, 3), listen_to_nobody=alone)


def drive(database: Database) -> bool:
    """Take the steps that are due in the rounds that take updates; say whether there were any."""
    with database.read() as session:
        now = database_time(session)
        due = [
            (row.federation_id, row.number)
            for row, facts in rounds.collecting(session)
            if next_state(facts, now) is not None
        ]
    for federation_id, round_number in due:
        with database.write() as session:
            lock_federation(session, federation_id)
            row = rounds.numbered(session, federation_id, round_number, lock=True)
            transitions.advance(session, row, database_time(session))
    return bool(due)


class _Loop:
    """A thread that works when woken and after each pause, and outlives a database's bad moments."""

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        pause: Callable[[], float | None],
        stopping: threading.Event,
    ) -> None:
        self._work = work
        self._pause = pause
        self._stopping = stopping
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ticker-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                if self._work():
                    continue
            except Exception:
                log.exception("tick-failed", loop=self._thread.name)
            self._woken.wait(self._pause())
