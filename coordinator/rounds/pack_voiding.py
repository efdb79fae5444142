"""End alignment packs: what was learnt under one that is replaced, deleted or voided no longer counts.

Frames give P and Q their meaning. Updates of the pack's base model are listed as rejected, so that its
clients are newcomers again; the weights that they were to begin from are made anew; and the round in
progress is abandoned. Packs of other base models that were made on the pivot's end with it.

Every function works in the caller's write transaction, with the federation locked.
"""

from __future__ import annotations

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session

from coordinator.db.tables.alignment import PackRow, VoidedPackRow
from coordinator.db.tables.federations import ClientRow, FederationRow, UpdateRow, WeightsRow
from coordinator.federations.store import plan_of
from coordinator.rounds import store, transitions
from coordinator.rounds.lifecycle import ENDED, PACK_ENDED
from coordinator.storage import event_log, payloads


def void(session: Session, federation: FederationRow, pack: PackRow) -> list[str]:
    """End a pack, and with the pivot's all that were made on it; return the base models of them."""
    plan = plan_of(federation).alignment
    ended = [pack]
    if plan is not None and plan.frames != "random" and pack.base_model == plan.pivot:
        ended = list(session.scalars(select(PackRow).where(PackRow.federation_id == federation.id)))
    for row in ended:
        session.merge(
            VoidedPackRow(federation_id=federation.id, base_model=row.base_model, digest=row.digest)
        )
        payloads.start_grace(session, row.payload_id)
        session.delete(row)
    session.flush()
    models = sorted(row.base_model for row in ended)
    _discount(session, federation, models)
    for base_model in models:
        event_log.append(session, federation.id, "alignment", {"base_model": base_model, "digest": None})
    return models


def void_those_of(session: Session, federation: FederationRow, client_id: str) -> list[str]:
    """End the packs that a client stored; return the base models that have none now."""
    ended: list[str] = []
    stored = select(PackRow).where(PackRow.federation_id == federation.id, PackRow.stored_by == client_id)
    while (pack := session.scalar(stored.limit(1))) is not None:
        ended += void(session, federation, pack)
    return ended


def vouch_for_those_of(session: Session, federation: FederationRow, client_id: str) -> None:
    """Count the packs that a client stored as an operator's from now on."""
    session.execute(
        update(PackRow)
        .where(PackRow.federation_id == federation.id, PackRow.stored_by == client_id)
        .values(stored_by=None)
    )


def forget_verdicts_of(session: Session, federation_id: str, client_id: str) -> None:
    """Count a client's verdicts on packs no longer."""
    for pack in session.scalars(select(PackRow).where(PackRow.federation_id == federation_id)):
        if pack.verdicts and client_id in pack.verdicts:
            pack.verdicts = {name: test for name, test in pack.verdicts.items() if name != client_id}
            settle_verdict(session, pack)


def settle_verdict(session: Session, pack: PackRow) -> None:
    """Choose the acceptance test that stands: a person's, or else what the clients' come to.

    A pack fails when more than half of the enrolled clients of its base model say so: fewer cannot cut the
    others off from sharing. It passes when somebody says so and it does not fail.
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
    stands = failed if 2 * len(failed) > (members or 0) else passed
    pack.acceptance = stands[-1] if stands else None
    session.flush()


def restore(session: Session, federation_id: str, base_model: str, digest: str) -> None:
    """Count a pack again that had ended: agents may keep their copies of it."""
    session.execute(
        delete(VoidedPackRow).where(
            VoidedPackRow.federation_id == federation_id,
            VoidedPackRow.base_model == base_model,
            VoidedPackRow.digest == digest,
        )
    )


def _discount(session: Session, federation: FederationRow, models: list[str]) -> None:
    if federation.state == "finished":
        return  # there is no round to come, and the final weights stay as they were served
    of_these = select(ClientRow.id).where(
        ClientRow.federation_id == federation.id, ClientRow.base_model.in_(models)
    )
    current = store.latest(session, federation.id)
    if current is not None and current.state not in ENDED:
        current = store.numbered(session, federation.id, current.number, lock=True)
        transitions.abandon(session, federation, current, PACK_ENDED)
    else:
        _take_back(session, federation.id, of_these)
    session.execute(
        update(UpdateRow)
        .where(
            UpdateRow.federation_id == federation.id,
            UpdateRow.client_id.in_(of_these),
            UpdateRow.reject_reason.is_(None),
        )
        .values(reject_reason=PACK_ENDED)
        .execution_options(synchronize_session=False)
    )


def _take_back(session: Session, federation_id: str, of_these: Select[str]) -> None:
    """Delete the weights for a round that is not open yet, which nobody was told of.

    Those of a round that is abandoned stay what they were: `joining` does not begin from them.
    """
    _, last = store.published(session, federation_id)
    later = (
        WeightsRow.federation_id == federation_id,
        WeightsRow.client_id.in_(of_these),
        WeightsRow.round_number > last,
    )
    held = session.scalars(select(WeightsRow.payload_id).where(*later, WeightsRow.payload_id.is_not(None)))
    payloads.start_grace(session, *(payload for payload in held if payload is not None))
    session.execute(delete(WeightsRow).where(*later).execution_options(synchronize_session=False))
