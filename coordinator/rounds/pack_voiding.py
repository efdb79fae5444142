"""Void alignment packs: reject the updates that were trained with them, and abandon the current round.

Each function needs the caller's write transaction with the federation's row locked.
"""

from __future__ import annotations

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session

from coordinator.db.tables.alignment import PackRow, VoidedPackRow
from coordinator.db.tables.federations import (
    ClientRow,
    CodedWeightsRow,
    FederationRow,
    RoundRow,
    UpdateRow,
    WeightsRow,
)
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.federations.store import plan_of
from coordinator.rounds import store, transitions
from coordinator.rounds.lifecycle import ENDED, PACK_ENDED
from coordinator.storage import event_log, payloads


def void(session: Session, federation: FederationRow, pack: PackRow) -> list[str]:
    """Void a pack, and with the pivot's all packs that depend on it; return their base models.

    The clients of these base models begin anew: P and Q have no meaning without the frames of the pack.
    """
    plan = plan_of(federation).alignment
    is_pivot = plan is not None and plan.frames != "random" and pack.base_model == plan.pivot
    packs = [pack]
    if is_pivot:
        packs = list(session.scalars(select(PackRow).where(PackRow.federation_id == federation.id)))
    for row in packs:
        session.merge(
            VoidedPackRow(federation_id=federation.id, base_model=row.base_model, digest=row.digest)
        )
        payloads.start_grace(session, row.payload_id)
        session.delete(row)
    session.flush()
    base_models = sorted(row.base_model for row in packs)
    _reject_updates(session, federation, base_models)
    if is_pivot:
        _void_joint_models(session, federation.id)
    for base_model in base_models:
        event_log.append(session, federation.id, "alignment", {"base_model": base_model, "digest": None})
    return base_models


def void_packs_of(session: Session, federation: FederationRow, client_id: str) -> list[str]:
    """Void the packs that a client stored; return the base models without a pack now."""
    base_models: list[str] = []
    stored = select(PackRow).where(PackRow.federation_id == federation.id, PackRow.stored_by == client_id)
    # One at a time: voiding the pivot's pack may delete others that the client stored.
    while (pack := session.scalar(stored.limit(1))) is not None:
        base_models += void(session, federation, pack)
    return base_models


def adopt_packs_of(session: Session, federation: FederationRow, client_id: str) -> None:
    """Treat the packs that a client stored as an operator's, so that they outlive its revocation."""
    session.execute(
        update(PackRow)
        .where(PackRow.federation_id == federation.id, PackRow.stored_by == client_id)
        .values(stored_by=None)
    )


def delete_verdicts_of(session: Session, federation_id: str, client_id: str) -> None:
    for pack in session.scalars(select(PackRow).where(PackRow.federation_id == federation_id)):
        if pack.verdicts and client_id in pack.verdicts:
            pack.verdicts = {name: test for name, test in pack.verdicts.items() if name != client_id}
            update_acceptance(session, pack)


def update_acceptance(session: Session, pack: PackRow) -> None:
    """Choose the acceptance test of a pack: an operator's, or else the newest of the prevailing verdict.

    A pack fails with the verdicts of more than half of the enrolled clients of its base model. It passes with
    any passed test if it does not fail.
    """
    if pack.acceptance is not None and pack.acceptance["tested_by"] is None:
        return
    members = session.scalar(
        select(func.count()).where(
            ClientRow.federation_id == pack.federation_id,
            ClientRow.base_model == pack.base_model,
            ClientRow.state == "enrolled",
        )
    )
    tests = sorted((pack.verdicts or {}).values(), key=lambda test: str(test["tested_at"]))
    failed = [test for test in tests if test["verdict"] == "failed"]
    passed = [test for test in tests if test["verdict"] == "passed"]
    # More than half: a minority must not exclude the others from sharing.
    verdict_tests = failed if 2 * len(failed) > (members or 0) else passed
    pack.acceptance = verdict_tests[-1] if verdict_tests else None
    session.flush()


def restore(session: Session, federation_id: str, base_model: str, digest: str) -> None:
    """Mark a voided pack as valid again, so that agents may use their copies of it."""
    session.execute(
        delete(VoidedPackRow).where(
            VoidedPackRow.federation_id == federation_id,
            VoidedPackRow.base_model == base_model,
            VoidedPackRow.digest == digest,
        )
    )


def _reject_updates(session: Session, federation: FederationRow, base_models: list[str]) -> None:
    if federation.state == "finished":
        return  # no round follows, and the final weights were served
    client_ids = select(ClientRow.id).where(
        ClientRow.federation_id == federation.id, ClientRow.base_model.in_(base_models)
    )
    current = store.latest(session, federation.id)
    if current is not None and current.state not in ENDED:
        current = store.get_round(session, federation.id, current.number, lock=True)
        transitions.abandon(session, federation, current, PACK_ENDED)
    else:
        _delete_unserved_weights(session, federation.id, client_ids)
    session.execute(
        update(UpdateRow)
        .where(
            UpdateRow.federation_id == federation.id,
            UpdateRow.client_id.in_(client_ids),
            UpdateRow.reject_reason.is_(None),
        )
        .values(reject_reason=PACK_ENDED)
        .execution_options(synchronize_session=False)
    )


def _void_joint_models(session: Session, federation_id: str) -> None:
    """Void the models of sums whose values have lost their meaning: that of the frames of all packs."""
    session.execute(
        update(JointModelRow)
        .where(JointModelRow.federation_id == federation_id)
        .values(is_void=True)
        .execution_options(synchronize_session=False)
    )


def _delete_unserved_weights(session: Session, federation_id: str, client_ids: Select[str]) -> None:
    """Delete weights that were computed for a round after the last published one.

    Those of a round that was abandoned because a pack ended stay: `joining` does not start from them, and
    their clients may still ask for them.
    """
    _, published = store.published(session, federation_id)
    ended = session.scalar(
        select(func.max(RoundRow.number)).where(
            RoundRow.federation_id == federation_id, RoundRow.reason == PACK_ENDED
        )
    )
    last = max(published, ended or 0)
    later = (
        WeightsRow.federation_id == federation_id,
        WeightsRow.client_id.in_(client_ids),
        WeightsRow.round_number > last,
    )
    payload_ids = session.scalars(
        select(WeightsRow.payload_id).where(*later, WeightsRow.payload_id.is_not(None))
    )
    payloads.start_grace(session, *(payload_id for payload_id in payload_ids if payload_id is not None))
    session.execute(delete(WeightsRow).where(*later).execution_options(synchronize_session=False))
    differences = (
        CodedWeightsRow.federation_id == federation_id,
        CodedWeightsRow.client_id.in_(client_ids),
        CodedWeightsRow.round_number > last,
    )
    coded_ids = session.scalars(
        select(CodedWeightsRow.payload_id).where(*differences, CodedWeightsRow.payload_id.is_not(None))
    )
    payloads.start_grace(session, *(payload_id for payload_id in coded_ids if payload_id is not None))
    session.execute(delete(CodedWeightsRow).where(*differences).execution_options(synchronize_session=False))
