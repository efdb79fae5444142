"""Prune old rounds: delete their tensors and events, and keep the rows that views show.

The tensors that a later round may read stay: each client's last counted update and last served weights, the
last base delta of each base model, the last joint model, and the last revision of each expert.
`storage.garbage_collection` deletes payloads without a reference.
"""

from __future__ import annotations

from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session, aliased

from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.experts import ExpertRevisionRow
from coordinator.db.tables.federations import FederationRow, FoldRow, RoundRow, UpdateRow, WeightsRow
from coordinator.db.tables.secure_sum import JointModelRow, SumSessionRow
from coordinator.db.tables.weights import CodedWeightsRow
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
        with database.write() as session:
            lock_federation(session, federation_id)
            pruned += _prune_federation(session, federation_id, keep_rounds, limit)
    return pruned


def _prune_federation(session: Session, federation_id: str, keep_rounds: int, limit: int) -> int:
    published = list(session.scalars(_published(federation_id).limit(keep_rounds)))
    if len(published) < keep_rounds:
        return 0
    oldest_kept = published[-1]
    updates = list(session.scalars(_old_updates(federation_id, oldest_kept, published[0]).limit(limit)))
    weights = list(session.scalars(_old_weights(federation_id, oldest_kept).limit(limit)))
    base_deltas = list(session.scalars(_old_base_deltas(federation_id, oldest_kept).limit(limit)))
    coded_weights = list(session.scalars(_old_coded_weights(federation_id, oldest_kept).limit(limit)))
    joint_models = list(session.scalars(_old_joint_models(federation_id, oldest_kept).limit(limit)))
    revisions = list(session.scalars(_old_revisions(federation_id, oldest_kept).limit(limit)))
    summed = list(session.scalars(_old_totals(federation_id, oldest_kept).limit(limit)))
    payload_ids = {row.payload_id for row in updates} | {row.state_payload_id for row in updates}
    payload_ids |= {row.payload_id for rows in (weights, base_deltas, coded_weights) for row in rows}
    payload_ids |= {row.payload_id for rows in (joint_models, revisions) for row in rows}
    payload_ids |= {row.total_payload_id for row in summed}
    payloads.start_grace(session, *(payload_id for payload_id in payload_ids if payload_id is not None))
    for update in updates:
        update.payload_id = update.state_payload_id = None
    for served in weights:
        served.payload_id = served.head = None
    for base_delta in base_deltas:
        base_delta.payload_id = None
    for joint_model in joint_models:
        joint_model.payload_id = None
    for revision in revisions:
        revision.payload_id = None
    for of_sum in summed:
        of_sum.total_payload_id = None
    for coded in coded_weights:  # whole rows: weights can be encoded again from those that stay
        session.delete(coded)
    events = event_log.delete_of_rounds(session, federation_id, oldest_kept, most=limit)
    tensors = (updates, weights, base_deltas, coded_weights, joint_models, revisions, summed)
    return sum(len(rows) for rows in tensors) + events


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


def _old_coded_weights(federation_id: str, oldest_kept: int) -> Select[CodedWeightsRow]:
    return select(CodedWeightsRow).where(
        CodedWeightsRow.federation_id == federation_id, CodedWeightsRow.round_number < oldest_kept
    )


def _old_base_deltas(federation_id: str, oldest_kept: int) -> Select[FoldRow]:
    newer = aliased(FoldRow)
    superseded = exists().where(
        newer.federation_id == FoldRow.federation_id,
        newer.base_model == FoldRow.base_model,
        newer.form == FoldRow.form,
        newer.round_number > FoldRow.round_number,
    )
    return select(FoldRow).where(
        FoldRow.federation_id == federation_id,
        FoldRow.round_number < oldest_kept,
        FoldRow.payload_id.is_not(None),
        superseded,
    )


def _old_joint_models(federation_id: str, oldest_kept: int) -> Select[JointModelRow]:
    newer = aliased(JointModelRow)
    superseded = exists().where(
        newer.federation_id == JointModelRow.federation_id, newer.round_number > JointModelRow.round_number
    )
    return select(JointModelRow).where(
        JointModelRow.federation_id == federation_id,
        JointModelRow.round_number < oldest_kept,
        JointModelRow.payload_id.is_not(None),
        superseded,
    )


def _old_revisions(federation_id: str, oldest_kept: int) -> Select[ExpertRevisionRow]:
    """Return superseded revisions that no kept round begins with: the last one before it stays."""
    newer = aliased(ExpertRevisionRow)
    superseded = exists().where(
        newer.federation_id == ExpertRevisionRow.federation_id,
        newer.expert == ExpertRevisionRow.expert,
        newer.round_number > ExpertRevisionRow.round_number,
        newer.round_number < oldest_kept,
    )
    return select(ExpertRevisionRow).where(
        ExpertRevisionRow.federation_id == federation_id,
        ExpertRevisionRow.payload_id.is_not(None),
        superseded,
    )


def _old_totals(federation_id: str, oldest_kept: int) -> Select[SumSessionRow]:
    return (
        select(SumSessionRow)
        .join(RoundRow, RoundRow.id == SumSessionRow.round_id)
        .where(
            RoundRow.federation_id == federation_id,
            RoundRow.number < oldest_kept,
            SumSessionRow.total_payload_id.is_not(None),
        )
    )
