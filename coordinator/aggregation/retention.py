"""Prune old rounds: delete their tensors and events, and keep the rows that views show.

The tensors that a later round may read stay: each client's last counted update and last served weights, and
those that the parts of rounds name (`Part.old_tensors`). `storage.garbage_collection` deletes payloads
without a reference.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session, aliased

from coordinator.aggregation.part import OldTensors
from coordinator.aggregation.parts import old_tensors
from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import CodedWeightsRow, FederationRow, RoundRow, UpdateRow, WeightsRow
from coordinator.errors import NotFound
from coordinator.storage import event_log, payloads


def prune_rounds(database: Database, keep_rounds: int, *, limit: int = 200) -> int:
    """Prune all but each federation's last `keep_rounds` published rounds.

    Args:
        limit: most rows of each kind in a transaction, so that no request waits long for the lock.

    Returns:
        The number of pruned rows; 0 = nothing is left to prune.
    """
    with database.read() as session:
        federation_ids = list(session.scalars(select(FederationRow.id).order_by(FederationRow.id)))
    pruned = 0
    for federation_id in federation_ids:
        with suppress(NotFound), database.write() as session:  # one may have been removed meanwhile
            lock_federation(session, federation_id)
            pruned += _prune_federation(session, federation_id, keep_rounds, limit)
    return pruned


def _prune_federation(session: Session, federation_id: str, keep_rounds: int, limit: int) -> int:
    published = list(session.scalars(_published(federation_id).limit(keep_rounds)))
    if len(published) < keep_rounds:
        return 0
    oldest_kept = published[-1]
    kinds = [
        OldTensors(
            _old_updates(federation_id, oldest_kept, published[0]), ("payload_id", "state_payload_id")
        ),
        OldTensors(_old_weights(federation_id, oldest_kept), extras=("head",)),
        *old_tensors(federation_id, oldest_kept),
    ]
    rows = [(kind, list(session.scalars(kind.rows.limit(limit)))) for kind in kinds]
    # One statement for all kinds: replicas that prune federations with common payloads lock in one order.
    payload_ids = {
        getattr(row, column) for kind, old_rows in rows for row in old_rows for column in kind.references
    }
    payloads.start_grace(session, *(payload_id for payload_id in payload_ids if payload_id is not None))
    for kind, old_rows in rows:
        for row in old_rows:
            for column in (*kind.references, *kind.extras):
                setattr(row, column, None)
    pruned = sum(len(old_rows) for _, old_rows in rows)
    pruned += _delete_coded_weights(session, federation_id, oldest_kept, limit)
    return pruned + event_log.delete_of_rounds(session, federation_id, oldest_kept, most=limit)


def _delete_coded_weights(session: Session, federation_id: str, oldest_kept: int, limit: int) -> int:
    """Delete whole rows: weights can be encoded again from those that stay."""
    old = select(CodedWeightsRow).where(
        CodedWeightsRow.federation_id == federation_id, CodedWeightsRow.round_number < oldest_kept
    )
    rows = list(session.scalars(old.limit(limit)))
    if not rows:
        return 0
    payloads.start_grace(session, *{row.payload_id for row in rows if row.payload_id is not None})
    for row in rows:
        session.delete(row)
    return len(rows)


def _published(federation_id: str) -> Select[int]:
    published = RoundRow.federation_id == federation_id, RoundRow.state == "published"
    return select(RoundRow.number).where(*published).order_by(RoundRow.number.desc())


def _old_updates(federation_id: str, oldest_kept: int, published: int) -> Select[UpdateRow]:
    newer = aliased(UpdateRow)
    # A newer update of a round that is not published may still be rejected, and then the older one serves.
    superseded = exists().where(
        newer.client_id == UpdateRow.client_id,
        newer.reject_reason.is_(None),
        newer.round_number > UpdateRow.round_number,
        newer.round_number <= published,
    )
    return select(UpdateRow).where(
        UpdateRow.federation_id == federation_id,
        UpdateRow.round_number < oldest_kept,
        UpdateRow.payload_id.is_not(None),
        UpdateRow.reject_reason.is_not(None) | superseded,
    )


def _old_weights(federation_id: str, oldest_kept: int) -> Select[WeightsRow]:
    newer = aliased(WeightsRow)
    # A client is served the newest weights of the round or of an earlier one.
    superseded = exists().where(
        newer.client_id == WeightsRow.client_id,
        newer.round_number > WeightsRow.round_number,
        newer.round_number <= oldest_kept,
    )
    return select(WeightsRow).where(
        WeightsRow.federation_id == federation_id,
        WeightsRow.round_number < oldest_kept,
        WeightsRow.payload_id.is_not(None),
        superseded,
    )
