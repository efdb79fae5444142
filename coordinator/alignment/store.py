"""Store and query anchors and alignment packs."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.db.tables.alignment import AnchorsRow, PackRow, VoidedPackRow
from coordinator.db.tables.federations import FederationRow
from coordinator.errors import FederationStateConflict, Invalid, NotFound, PivotPackMissing
from coordinator.federations.store import pack_status, plan_of
from coordinator.rounds.pack_voiding import update_acceptance
from coordinator.storage import payloads
from coordinator.strategies.opening import open_plan
from schemas.messages.alignment import (
    Acceptance,
    AcceptanceView,
    AlignmentManifest,
    Anchors,
    PackView,
    VoidedPack,
    random_set,
)
from schemas.messages.federations import AlignmentPlan, FederationPlan
from schemas.wire.outputs import MOST_ROWS, rows_of

Row = TypeVar("Row")


def require_alignment(row: FederationRow) -> tuple[FederationPlan, AlignmentPlan]:
    """Return the plan of a federation, and its alignment.

    Raises:
        FederationStateConflict: the plan has no alignment.
    """
    plan = plan_of(row)
    if plan.alignment is None:
        raise FederationStateConflict(
            "the federation's plan has no alignment; create a federation with one", state=row.state
        )
    return plan, plan.alignment


def require_use_of_anchors(row: FederationRow, texts: Anchors) -> None:
    """Check that a federation's plan has a use for these anchor texts.

    Raises:
        FederationStateConflict: it has neither an alignment, nor distillation, nor a pull to the base model.
        Invalid: outputs on them would have too many rows for an update.
    """
    plan = plan_of(row)
    distil = open_plan(plan).options.distilled_texts
    rows = rows_of(anchor.answer for anchor in texts.anchors[: distil or 0])
    if rows > MOST_ROWS:
        raise Invalid(
            f"anchors: the first {distil} answers have {rows} characters and ends, and outputs are compared "
            f"at {MOST_ROWS} at most; send shorter ones",
            field="anchors",
        )
    if plan.alignment is None and distil is None and not plan.training.anchor_pull:
        raise FederationStateConflict(
            "the federation's plan has neither an alignment nor strategy.options.distil nor "
            "training.anchor_pull, which anchors are for; create a federation with one",
            state=row.state,
        )


def anchors(session: Session, federation_id: str) -> AnchorsRow | None:
    return session.get(AnchorsRow, federation_id)


def store_anchors(
    session: Session, federation_id: str, *, payload_id: int, digest: str, size: int, count: int
) -> AnchorsRow:
    replaced = anchors(session, federation_id)
    # A download of the replaced texts may be in progress.
    if replaced is not None and replaced.payload_id != payload_id:
        payloads.start_grace(session, replaced.payload_id)
    row = session.merge(
        AnchorsRow(federation_id=federation_id, payload_id=payload_id, digest=digest, bytes=size, count=count)
    )
    session.flush()
    return row


def pack(session: Session, federation_id: str, base_model: str) -> PackRow | None:
    return session.scalar(
        select(PackRow).where(PackRow.federation_id == federation_id, PackRow.base_model == base_model)
    )


def packs(session: Session, federation_id: str) -> list[PackRow]:
    return list(
        session.scalars(
            select(PackRow).where(PackRow.federation_id == federation_id).order_by(PackRow.base_model)
        )
    )


def voided(session: Session, federation_id: str) -> list[VoidedPack]:
    rows = session.scalars(
        select(VoidedPackRow)
        .where(VoidedPackRow.federation_id == federation_id)
        .order_by(VoidedPackRow.base_model, VoidedPackRow.digest)
    )
    return [VoidedPack(base_model=row.base_model, digest=row.digest) for row in rows]


def required_set(session: Session, row: FederationRow, plan: AlignmentPlan, base_model: str) -> str | None:
    """Return the alignment set to which a base model's pack must belong; None for the pivot's.

    With random frames, the set follows from the plan.

    Raises:
        PivotPackMissing: the pivot's pack is not stored yet.
    """
    if plan.frames == "random":
        return random_set(plan, plan_of(row).adapter.rank)
    if base_model == plan.pivot:
        return None
    pivot_pack = pack(session, row.id, plan.pivot)
    if pivot_pack is None:
        raise PivotPackMissing(pivot=plan.pivot)
    return pivot_pack.alignment_set


def insert_pack(
    session: Session,
    federation_id: str,
    base_model: str,
    *,
    manifest: AlignmentManifest,
    payload_id: int,
    digest: str,
    size: int,
    stored_by: str | None,
    now: datetime,
) -> PackRow:
    row = PackRow(
        federation_id=federation_id,
        base_model=base_model,
        payload_id=payload_id,
        digest=digest,
        bytes=size,
        alignment_set=manifest.alignment_set,
        selected=list(manifest.selected),
        errors={name: error.model_dump() for name, error in manifest.errors.items()},
        stored_by=stored_by,
        stored_at=now,
        acceptance=None,
    )
    session.add(row)
    session.flush()
    return row


def acceptance(row: PackRow, tested_by: str | None) -> Acceptance | None:
    stored = stored_test(row, tested_by)
    if stored is None:
        return None
    test = {name: value for name, value in stored.items() if name not in ("tested_by", "tested_at")}
    return Acceptance.model_validate({"pack": row.digest, **test})


def stored_test(row: PackRow, tested_by: str | None) -> dict[str, Any] | None:
    """Return the test that a client stored for a pack, or an operator for None, with its author and time."""
    stored: dict[str, Any] | None = (
        row.acceptance if tested_by is None else (row.verdicts or {}).get(tested_by)
    )
    return stored if stored is not None and stored["tested_by"] == tested_by else None


def store_acceptance(
    session: Session, row: PackRow, tested: Acceptance, *, tested_by: str | None, now: datetime
) -> None:
    """Store a test, replacing the author's earlier one; `tested_by` is None for an operator."""
    figures = tested.model_dump(mode="json", exclude={"pack"})
    test = AcceptanceView.model_validate({**figures, "tested_by": tested_by, "tested_at": now})
    if tested_by is None:
        row.acceptance = test.model_dump(mode="json")
    else:
        row.verdicts = {**(row.verdicts or {}), tested_by: test.model_dump(mode="json")}
    update_acceptance(session, row)
    session.flush()


def view(row: PackRow, plan: AlignmentPlan) -> PackView:
    return PackView.model_validate(
        {
            "base_model": row.base_model,
            "digest": row.digest,
            "bytes": row.bytes,
            "alignment_set": row.alignment_set,
            "selected": row.selected,
            "errors": row.errors,
            "stored_at": row.stored_at,
            "acceptance": row.acceptance,
            "verdicts": Counter(test["verdict"] for test in (row.verdicts or {}).values()),
            "sharing": pack_status(row, plan).sharing,
        }
    )


def require_row(row: Row | None) -> Row:
    if row is None:
        raise NotFound
    return row
