"""When clients were here last: written down together, in short writes, and only when that is due.

Each process counts for itself. What it has not written when it ends is lost: nothing depends on it, and who
is here still comes again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import ClientRow
from coordinator.observability.logs import logger

log = logger(__name__)

_AGAIN_AFTER = timedelta(seconds=15)
_TOGETHER = timedelta(seconds=1)
# Who waits for nobody's row keeps nobody waiting for those it has.
_FREE = (
    select(ClientRow.id)
    .where(ClientRow.id.in_(bindparam("clients", expanding=True)))
    .with_for_update(skip_locked=True, key_share=True)
)
_SEEN = (
    update(ClientRow)
    .where(
        ClientRow.id.in_(bindparam("clients", expanding=True)),
        or_(ClientRow.last_seen_at.is_(None), ClientRow.last_seen_at <= bindparam("stale")),
    )
    .values(last_seen_at=bindparam("moment"))
)


def is_due(last_seen_at: datetime | None, moment: datetime) -> bool:
    """Say whether it is to be written down that a client is here at `moment`."""
    return last_seen_at is None or last_seen_at <= moment - _AGAIN_AFTER


class Sightings:
    """Whom this process has seen and not written down yet: a write for each of a thousand would fill it."""

    def __init__(self) -> None:
        self._unwritten: dict[str, datetime] = {}
        self._last_write: datetime | None = None
        self._lock = threading.Lock()

    def note(self, database: Database, client_id: str, moment: datetime) -> None:
        """Write down that a client was here at `moment` of the database's clock; with others, if many are."""
        with self._lock:
            self._unwritten[client_id] = moment
            if self._last_write is not None and abs(moment - self._last_write) < _TOGETHER:
                return
            self._last_write = moment
            seen, self._unwritten = self._unwritten, {}
        try:
            with database.write() as session:
                free = run(session, _FREE, {"clients": sorted(seen)}).scalars().all()
                for clients, when in _by_second({client: seen[client] for client in free}):
                    values = {"clients": clients, "moment": when, "stale": when - _AGAIN_AFTER}
                    run(session, _SEEN, values)
        except SQLAlchemyError as error:
            # A busy database must not cost the client its request: it is seen again with the next one.
            log.warning("sightings-not-written", clients=len(seen), exc_info=error)


def _by_second(seen: dict[str, datetime]) -> Iterator[tuple[list[str], datetime]]:
    """Put together who was seen within one second, with the last moment of theirs: one statement for all."""
    together: dict[datetime, list[str]] = {}
    for client, moment in seen.items():
        together.setdefault(moment.replace(microsecond=0), []).append(client)
    for clients in together.values():
        yield clients, max(seen[client] for client in clients)
