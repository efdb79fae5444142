"""Delete payloads without references, from any table."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, exists, or_, select

from coordinator.db.engine import Database, database_time
from coordinator.db.tables.alignment import AnchorsRow, PackRow
from coordinator.db.tables.experts import ExpertRevisionRow
from coordinator.db.tables.federations import (
    CodedWeightsRow,
    FoldRow,
    PayloadRow,
    RoundRow,
    UpdateRow,
    WeightsRow,
)
from coordinator.db.tables.secure_sum import JointModelRow, SumMessageRow, SumSessionRow
from coordinator.observability.fault_points import may_crash

_BATCH = 200
GRACE = timedelta(hours=1)
"""Age at which an unreferenced payload is deleted: a younger one may be in use."""

_REFERENCES = (
    UpdateRow.payload_id,
    UpdateRow.state_payload_id,
    WeightsRow.payload_id,
    CodedWeightsRow.payload_id,
    FoldRow.payload_id,
    AnchorsRow.payload_id,
    PackRow.payload_id,
    SumMessageRow.payload_id,
    SumSessionRow.total_payload_id,
    JointModelRow.payload_id,
    ExpertRevisionRow.payload_id,
)
# An unfinished payload may belong to a running aggregation or sum, however long that takes.
_UNFINISHED = PayloadRow.digest.is_(None) & exists().where(RoundRow.state.in_(("aggregating", "summing")))
_UNREFERENCED = select(PayloadRow.id).where(
    ~or_(*(exists().where(column == PayloadRow.id) for column in _REFERENCES)), ~_UNFINISHED
)


def collect(database: Database, *, grace: timedelta = GRACE) -> int:
    """Delete a batch of unreferenced payloads older than `grace`; return their number, 0 when none are left.

    Unfinished payloads stay while any round is being summed or aggregated.
    """
    with database.read() as session:
        old = _UNREFERENCED.where(PayloadRow.created_at < database_time(session) - grace)
        candidates = list(session.scalars(old.limit(_BATCH)))
    collected = 0
    for payload_id in candidates:
        with database.write() as session:
            # The lock waits for a transaction that adds a reference; the repeated query then sees the
            # reference, or a new grace.
            session.scalar(select(PayloadRow.id).where(PayloadRow.id == payload_id).with_for_update())
            if session.scalar(old.where(PayloadRow.id == payload_id)) is not None:
                session.execute(delete(PayloadRow).where(PayloadRow.id == payload_id))
                collected += 1
                may_crash("collection-deleted")
    return collected
