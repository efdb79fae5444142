"""Background workers: advance due rounds, open sums, aggregate, clean up, publish events.

All but the last query the database when woken and at every tick, so that they also find the work of other
replicas and of processes that died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from opentelemetry.trace import Tracer
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from coordinator.aggregation import job, retention
from coordinator.aggregation.part import Claim
from coordinator.auth import failure_limit, nonces, sign_outs
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.errors import Unavailable
from coordinator.observability.logs import logger, scope
from coordinator.observability.metrics import Metrics
from coordinator.observability.tracing import NO_TRACER, begin_span
from coordinator.rounds import store as rounds
from coordinator.rounds import transitions
from coordinator.rounds.lifecycle import next_state
from coordinator.rounds.notifications import Change, PendingNotifications
from coordinator.rounds.round_tracker import RoundTracker
from coordinator.secure_sum import leases, sessions
from coordinator.secure_sum.worker import SumWorker
from coordinator.storage import event_log, garbage_collection, webhook_outbox
from coordinator.storage.payload_moves import PASS_SECONDS, PayloadMover
from coordinator.storage.server_key import ServerKey

_COLLECT_EVERY_SECONDS = 600.0
log = logger(__name__)


class ServiceStopped(Exception):
    """The service is stopping; another worker continues."""


class Ticker:
    """Runs the workers from `start` to `stop`; `wake` makes them check for work.

    `moved` is called after every commit in which a round may have opened or a federation ended.
    """

    def __init__(
        self,
        database: Database,
        *,
        lease_seconds: float,
        tick_seconds: float,
        block_bytes: int,
        keep_rounds: int | None = None,
        mover: PayloadMover | None = None,
        key: ServerKey,
        metrics: Metrics,
        moved: Callable[[], None],
        tracker: RoundTracker | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._block_bytes = block_bytes
        self._keep_rounds = keep_rounds
        self._key = key
        self._metrics = metrics
        self._moved = moved
        self._tracker = tracker
        self._tracer = tracer
        self._sums = SumWorker(
            database,
            key,
            lease_seconds=lease_seconds,
            block_bytes=block_bytes,
            check=self._check,
            stopped=ServiceStopped,
        )
        self._pending = PendingNotifications()
        self._stopping = threading.Event()
        self._next_collection = time.monotonic() + _COLLECT_EVERY_SECONDS
        self._tick_seconds = tick_seconds
        self._publisher = _Loop("events", self._publish, self._pending.seconds_until_due, self._stopping)
        self._loops = [
            _Loop("rounds", self._advance, self._tick, self._stopping),
            _Loop("sums", self._sum, self._tick, self._stopping),
            _Loop("aggregation", self._aggregate, self._tick, self._stopping),
            _Loop("cleanup", self._clean_up, self._tick, self._stopping),
            self._publisher,
        ]
        if tracker is not None:
            self._loops.append(_Loop("trackers", self._record, self._tick, self._stopping))
        if mover is not None:
            move = partial(self._move, mover)
            self._loops.append(_Loop("payloads", move, lambda: PASS_SECONDS, self._stopping))

    def start(self) -> None:
        """Start the threads."""
        if self._database.is_sqlite:  # no other process serves this file, so all leases are stale
            with self._database.write() as session:
                rounds.expire_leases(session)
                leases.expire_leases(session)
        for loop in self._loops:
            loop.start()

    def wake(self) -> None:
        """Check for work now."""
        for loop in self._loops:
            loop.wake()

    def note(self, change: Change) -> None:
        """Publish a change soon."""
        if self._pending.add(change):
            self._publisher.wake()

    def stop(self) -> None:
        """Stop the threads, publish pending events, and release the lease of an aggregation in progress."""
        self._stopping.set()
        self.wake()
        for loop in self._loops:
            loop.join()
        try:
            self._pending.publish(self._database, is_due=True)
        except Exception:
            log.exception("event-publication-failed")
        if self._tracker is not None:
            self._tracker.close()

    def _tick(self) -> float:
        return self._tick_seconds

    def _advance(self) -> bool:
        moved = drive(self._database, self._tracer)
        summed = sessions.drive(self._database, self._key)
        if moved or summed:
            self.wake()
            self._moved()
        return False

    def _record(self) -> bool:
        if self._tracker is not None:
            self._tracker.record()
        return False

    def _publish(self) -> bool:
        self._pending.publish(self._database)
        return False

    def _clean_up(self) -> bool:
        """Delete expired rows and unreferenced payloads; return whether there may be more."""
        if time.monotonic() < self._next_collection:
            return False
        self._next_collection = time.monotonic() + _COLLECT_EVERY_SECONDS
        while not self._stopping.is_set() and failure_limit.delete_expired(self._database):
            pass
        while not self._stopping.is_set() and sign_outs.delete_expired(self._database):
            pass
        while not self._stopping.is_set() and webhook_outbox.delete_old(self._database):
            pass
        signed = 0
        while not self._stopping.is_set() and (deleted := nonces.delete_expired(self._database)):
            signed += deleted
        forgotten = retention.prune_rounds(self._database, self._keep_rounds) if self._keep_rounds else 0
        collected = garbage_collection.collect(self._database)
        forgotten += event_log.delete_old(self._database)
        if signed or forgotten or collected:
            log.info("cleaned-up", signed=signed, forgotten=forgotten, collected=collected)
        if not forgotten and not collected:
            return False
        # More may be left: the next batch follows at once.
        self._next_collection = time.monotonic()
        return True

    def _move(self, mover: PayloadMover) -> bool:
        mover.work(self._stopping.is_set)
        return False

    def _sum(self) -> bool:
        """Open one sum; return whether there may be another."""
        opened = self._sums.open_next()
        if opened:
            self.wake()  # the round is aggregated, or another session follows
            self._moved()
        return opened

    def _check(self) -> None:
        if self._stopping.is_set():
            raise ServiceStopped

    def _aggregate(self) -> bool:
        """Aggregate one round; return whether there may be another."""
        claim = job.claim_due(self._database, self._lease_seconds)
        if claim is None:
            return False
        names: dict[str, str | int] = {
            "tessera.federation": claim.federation_id,
            "tessera.round": claim.number,
        }
        with (
            scope(federation=claim.federation_id, round=claim.number),
            begin_span(self._tracer, "aggregate round", names),
        ):
            self._work(claim)
        return True

    def _work(self, claim: Claim) -> None:
        lease = job.lease_of(self._database, claim, self._lease_seconds)

        def between() -> None:
            self._check()
            lease.extend()

        began = time.monotonic()
        try:
            alone = job.aggregate(self._database, claim, block_bytes=self._block_bytes, between=between)
        except rounds.LostRace:
            log.info("aggregation-overtaken")
        # Another replica continues at once, and not when the lease runs out.
        except ServiceStopped:
            lease.release()
        except (OperationalError, InterfaceError, PoolExhausted, Unavailable):
            log.exception("aggregation-interrupted")  # the round is claimed again after the lease expires
        except Exception:
            log.exception("aggregation-failed")
            # The same inputs would fail again.
            job.abandon(self._database, claim)
            self._moved()
        else:
            self._moved()
            if self._tracker is not None:
                self._tracker.published(claim.federation_id, claim.number)
            seconds = time.monotonic() - began
            self._metrics.aggregation_seconds.observe(seconds)
            log.info("round-published", seconds=round(seconds, 3), listen_to_nobody=alone)


def drive(database: Database, tracer: Tracer = NO_TRACER) -> bool:
    """Advance the open rounds that are due; return whether there were any."""
    with database.read() as session:
        now = database_time(session)
        due = [
            (row.federation_id, row.number)
            for row, facts in rounds.collecting(session)
            if next_state(facts, now) is not None
        ]
    for federation_id, round_number in due:
        names: dict[str, str | int] = {"tessera.federation": federation_id, "tessera.round": round_number}
        with (
            begin_span(tracer, "advance round", names),
            database.write() as session,
        ):
            # Read without a lock above: whether a step is due is decided again here.
            lock_federation(session, federation_id)
            row = rounds.get_round(session, federation_id, round_number, lock=True)
            transitions.advance(session, row, database_time(session))
    return bool(due)


class _Loop:
    """A thread that works when woken and after each pause, and continues after errors."""

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
            # Cleared before the work: a wake-up during it leads to another pass.
            self._woken.clear()
            try:
                if self._work():
                    continue
            except Exception:
                log.exception("tick-failed", loop=self._thread.name)
            self._woken.wait(self._pause())
