"""Count what clients are sent. Refuses to know what it is."""

from __future__ import annotations

from coordinator.crash import may_crash
from coordinator.database import Database
from coordinator.metrics import Metrics
from coordinator.rounds import parts


def sent_to(
    database: Database, metrics: Metrics, client_id: str, size: int, *, round_id: int | None = None
) -> None:
    """Count a body before it leaves, so that who has read the last byte already finds it counted."""
    if not size:
        return
    with database.write() as session:
        parts.count_bytes(session, round_id, client_id, down=size)
    may_crash("download-counted")
    metrics.bytes_down.inc(size)
