"""Record when clients were last seen, in one write per second. Times not yet written are lost when a process
stops, which is harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

import anyio
from anyio import to_thread
from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import ClientRow
from coordinator.observability.logs import logger

log = logger(__name__)

_INTERVAL = timedelta(seconds=15)
_WRITE_INTERVAL = timedelta(seconds=1)
# Locked rows are skipped: waiting for one would block all transactions that need the others.
_UNLOCKED = (
    select(ClientRow.id)
    .where(ClientRow.id.in_(bindparam("clients", expanding=True)))
    .with_for_update(skip_locked=True, key_share=True)
)
_UPDATE = (
    update(ClientRow)
    .where(
        ClientRow.id.in_(bindparam("clients", expanding=True)),
        or_(ClientRow.last_seen_at.is_(None), ClientRow.last_seen_at <= bindparam("stale")),
    )
    .values(last_seen_at=bindparam("moment"))
)


def is_due(last_seen_at: datetime | None, now: datetime) -> bool:
    return last_seen_at is None or last_seen_at <= now - _INTERVAL


class LastSeenWriter:
    """Collects the clients seen by this process: one write per client would saturate the database."""

    def __init__(self) -> None:
        self._unwritten: dict[str, datetime] = {}
        self._last_write: datetime | None = None
        self._lock = threading.Lock()

    def record(self, database: Database, client_id: str, now: datetime) -> None:
        """Record that a client was seen at `now` of the database's clock; write at most once per
        interval.
        """
        with self._lock:
            self._unwritten[client_id] = now
            if self._last_write is not None and abs(now - self._last_write) < _WRITE_INTERVAL:
                return
            self._last_write = now
        self.flush(database)

    async def run(self, database: Database) -> None:
        """Write until cancelled what no later request would write."""
        while True:
            await anyio.sleep(_WRITE_INTERVAL.total_seconds())
            if self._unwritten:
                await to_thread.run_sync(self.flush, database)

    def flush(self, database: Database) -> None:
        """Write the recorded times."""
        with self._lock:
            batch, self._unwritten = self._unwritten, {}
        # Written outside of the lock: a slow database must not hold up other requests.
        try:
            with database.write() as session:
                unlocked = run(session, _UNLOCKED, {"clients": sorted(batch)}).scalars().all()
                # One statement per second instead of one per client.
                for clients, latest in _grouped_by_second(
                    {client_id: batch[client_id] for client_id in unlocked}
                ):
                    values = {"clients": clients, "moment": latest, "stale": latest - _INTERVAL}
                    run(session, _UPDATE, values)
        except SQLAlchemyError as error:
            # A busy database must not fail the request: the next one records the client again.
            log.warning("last-seen-not-written", clients=len(batch), exc_info=error)


def _grouped_by_second(batch: dict[str, datetime]) -> Iterator[tuple[list[str], datetime]]:
    """Group clients by the second in which they were seen, each group with its latest time."""
    groups: dict[datetime, list[str]] = {}
    for client_id, now in batch.items():
        groups.setdefault(now.replace(microsecond=0), []).append(client_id)
    for clients in groups.values():
        yield clients, max(batch[client_id] for client_id in clients)
