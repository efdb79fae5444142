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
_WRITE_SECONDS = 1.0
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
        self._lock = threading.Lock()

    def record(self, client_id: str, now: datetime) -> None:
        """Record that a client was seen at `now` of the database's clock, to be written soon.

        No request writes it: a poll would wait for the writers of tensors.
        """
        with self._lock:
            self._unwritten[client_id] = now

    async def run(self, database: Database) -> None:
        """Write the recorded times once per second until cancelled."""
        while True:
            await anyio.sleep(_WRITE_SECONDS)
            if self._unwritten:
                await to_thread.run_sync(self.flush, database)

    def flush(self, database: Database) -> None:
        """Write the recorded times."""
        with self._lock:
            batch, self._unwritten = self._unwritten, {}
        # Written outside of the lock: a slow database must not hold up requests.
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
            # A busy database must not end the service: the next request records the client again.
            log.warning("last-seen-not-written", clients=len(batch), exc_info=error)


def _grouped_by_second(batch: dict[str, datetime]) -> Iterator[tuple[list[str], datetime]]:
    """Group clients by the second in which they were seen, each group with its latest time."""
    groups: dict[datetime, list[str]] = {}
    for client_id, now in batch.items():
        groups.setdefault(now.replace(microsecond=0), []).append(client_id)
    for clients in groups.values():
        yield clients, max(batch[client_id] for client_id in clients)
