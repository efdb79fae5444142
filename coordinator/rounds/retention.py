"""Thin out what old rounds keep: their tensors and events go, what is shown of a round stays.

Refuses to touch what a round may still need: each client's last counted update, the weights it was given
last, and what is folded into each base model. What weights are in recipes goes whole: it can be made again
of weights that stay. The bytes themselves go when nobody refers to them any more
(`collection.collect`).
"""

from __future__ import annotations

from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session, aliased

from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import FederationRow, FoldRow, RoundRow, UpdateRow, WeightsRow
from coordinator.db.tables.weights import CodedWeightsRow
from coordinator.storage import event_log, payloads


def thin_out(database: Database, keep_rounds: int, *, most: int = 200) -> int:
    """Forget what all but each federation's last `keep_rounds` published rounds have in tensors and events.

    At most `most` of each at a time, lest anybody wait for long; gives how many, 0 when all are forgotten.
    """
    with database.read() as session:
        federations = list(session.scalars(select(FederationRow.id).order_by(FederationRow.id)))
    forgotten = 0
    for federation_id in federations:
        with database.write() as session:
            lock_federation(session, federation_id)
            forgotten += _thin_out(session, federation_id, keep_rounds, most)
    return forgotten


def _thin_out(session: Session, federation_id: str, keep_rounds: int, most: int) -> int:
    published = list(session.scalars(_published(federation_id).limit(keep_rounds)))
    if len(published) < keep_rounds:
        return 0
    oldest_kept = published[-1]
    updates = list(session.scalars(_old_updates(federation_id, oldest_kept, published[0]).limit(most)))
    weights = list(session.scalars(_old_weights(federation_id, oldest_kept).limit(most)))
    folds = list(session.scalars(_old_folds(federation_id, oldest_kept).limit(most)))
    coded = list(session.scalars(_old_coded(federation_id, oldest_kept).limit(most)))
    referred = {row.payload_id for row in updates} | {row.state_payload_id for row in updates}
    referred |= {one.payload_id for rows in (weights, folds, coded) for one in rows}
    payloads.start_grace(session, *(one for one in referred if one is not None))
    for row in updates:
        row.payload_id = row.state_payload_id = None
    for given in weights:
        given.payload_id = given.head = None
    for fold in folds:
        fold.payload_id = None
    for made in coded:
        session.delete(made)
    unread = event_log.delete_of_rounds(session, federation_id, oldest_kept, most=most)
    return len(updates) + len(weights) + len(folds) + len(coded) + unread


def _published(federation_id: str) -> Select[int]:
    """Select the numbers of published rounds, the newest first: between them may be abandoned ones."""
    published = RoundRow.federation_id == federation_id, RoundRow.state == "published"
    return select(RoundRow.number).where(*published).order_by(RoundRow.number.desc())


def _old_updates(federation_id: str, oldest_kept: int, published: int) -> Select[UpdateRow]:
    newer = aliased(UpdateRow)
    # One that counts: of a round that is published. The last of these serves rounds to come.
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
    # What a client is served in a round are the newest weights of that round or an earlier one.
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


def _old_coded(federation_id: str, oldest_kept: int) -> Select[CodedWeightsRow]:
    return select(CodedWeightsRow).where(
        CodedWeightsRow.federation_id == federation_id, CodedWeightsRow.round_number < oldest_kept
    )


def _old_folds(federation_id: str, oldest_kept: int) -> Select[FoldRow]:
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
