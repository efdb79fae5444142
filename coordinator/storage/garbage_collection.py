"""Delete payloads that nobody refers to. Knows every table that refers to one."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, exists, or_, select

from coordinator.db.engine import Database, now
from coordinator.db.tables.alignment import AnchorsRow, PackRow
from coordinator.db.tables.federations import FoldRow, PayloadRow, RoundRow, UpdateRow, WeightsRow
from coordinator.db.tables.weights import CodedWeightsRow
from coordinator.observability.fault_points import may_crash

_COLLECTED_AT_ONCE = 200
GRACE = timedelta(hours=1)
"""How long a payload that nobody refers to is left alone: it may be in the making."""

_REFERENCES = (
    UpdateRow.payload_id,
    UpdateRow.state_payload_id,
    WeightsRow.payload_id,
    CodedWeightsRow.payload_id,
    FoldRow.payload_id,
    AnchorsRow.payload_id,
    PackRow.payload_id,
)
# What is being written may be a running aggregation's, however long that takes.
_IN_THE_MAKING = PayloadRow.digest.is_(None) & exists().where(RoundRow.state == "aggregating")
_UNREFERENCED = select(PayloadRow.id).where(
    ~or_(*(exists().where(column == PayloadRow.id) for column in _REFERENCES)), ~_IN_THE_MAKING
)


def collect(database: Database, *, grace: timedelta = GRACE) -> int:
    """Delete some payloads that nobody refers to and that are older than `grace`; give their number.

    When that is 0 there are no more. Those in the making stay while any round is being aggregated.
    """
    with database.read() as session:
        old = _UNREFERENCED.where(PayloadRow.created_at < now(session) - grace)
        candidates = list(session.scalars(old.limit(_COLLECTED_AT_ONCE)))
    collected = 0
    for payload_id in candidates:
        with database.write() as session:
            # The lock waits for who is about to refer to it, and the second look then sees the reference, or
            # that it was let go meanwhile and has its grace.
            session.scalar(select(PayloadRow.id).where(PayloadRow.id == payload_id).with_for_update())
            if session.scalar(old.where(PayloadRow.id == payload_id)) is not None:
                session.execute(delete(PayloadRow).where(PayloadRow.id == payload_id))
                collected += 1
                may_crash("collection-deleted")
    return collected
