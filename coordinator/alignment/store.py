"""The rows of anchors and alignment packs."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import payloads
from coordinator.alignment_tables import AnchorsRow, PackRow
from coordinator.errors import FederationStateConflict, NotFound
from coordinator.federations.store import plan_of, standing
from coordinator.tables import FederationRow
from schemas.messages.alignment import Acceptance, AcceptanceView, AlignmentManifest, PackView
from schemas.messages.federations import FederationPlan

Row = TypeVar("Row")


def planned(row: FederationRow) -> FederationPlan:
    """Read the plan of a federation that aligns its base models.

    Raises:
        FederationStateConflict: it does not.
    """
    plan = plan_of(row)
    if plan.alignment is None:
        raise FederationStateConflict("this federation's plan has no alignment", state=row.state)
    return plan


def anchors(session: Session, fid: str) -> AnchorsRow | None:
    """Which anchor texts does a federation have?"""
    return session.get(AnchorsRow, fid)


def keep_anchors(
    session: Session, fid: str, *, payload_id: int, digest: str, size: int, count: int
) -> AnchorsRow:
    """Keep a federation's anchor texts, in place of those before."""
    known = anchors(session, fid)
    if known is not None and known.payload_id != payload_id:
        payloads.let_go(session, known.payload_id)
    row = session.merge(
        AnchorsRow(federation_id=fid, payload_id=payload_id, digest=digest, bytes=size, count=count)
    )
    session.flush()
    return row


def pack(session: Session, fid: str, base_model: str) -> PackRow | None:
    """Which alignment pack does a base model have?"""
    return session.scalar(
        select(PackRow).where(PackRow.federation_id == fid, PackRow.base_model == base_model)
    )


def packs(session: Session, fid: str) -> list[PackRow]:
    """Which alignment packs does a federation have?"""
    return list(
        session.scalars(select(PackRow).where(PackRow.federation_id == fid).order_by(PackRow.base_model))
    )


def known_set(session: Session, fid: str, *, besides: str) -> str | None:
    """To which alignment set do the packs of the other base models belong?"""
    return session.scalar(
        select(PackRow.alignment_set)
        .where(PackRow.federation_id == fid, PackRow.base_model != besides)
        .limit(1)
    )


def keep_pack(
    session: Session,
    fid: str,
    base_model: str,
    *,
    manifest: AlignmentManifest,
    payload_id: int,
    digest: str,
    size: int,
    stored_by: str | None,
    moment: datetime,
) -> PackRow:
    """Keep a base model's pack, in place of the one before."""
    known = pack(session, fid, base_model)
    if known is not None and known.payload_id != payload_id:
        payloads.let_go(session, known.payload_id)
    row = known or PackRow(federation_id=fid, base_model=base_model)
    row.payload_id = payload_id
    row.digest = digest
    row.bytes = size
    row.alignment_set = manifest.alignment_set
    row.selected = list(manifest.selected)
    row.errors = {name: error.model_dump() for name, error in manifest.errors.items()}
    row.stored_by = stored_by
    row.stored_at = moment
    row.acceptance = None  # what was tested was the one before
    session.add(row)
    session.flush()
    return row


def acceptance(row: PackRow) -> Acceptance | None:
    """Which acceptance test was stored for a pack?"""
    if row.acceptance is None:
        return None
    said = {name: value for name, value in row.acceptance.items() if name not in ("tested_by", "tested_at")}
    return Acceptance.model_validate({"pack": row.digest, **said})


def keep_acceptance(
    session: Session, row: PackRow, tested: Acceptance, *, tested_by: str | None, moment: datetime
) -> None:
    """Keep a pack's acceptance test, in place of the one before; `tested_by` is None for an operator."""
    said = tested.model_dump(mode="json", exclude={"pack"})
    shown = AcceptanceView.model_validate({**said, "tested_by": tested_by, "tested_at": moment})
    row.acceptance = shown.model_dump(mode="json")
    session.flush()


def view(row: PackRow) -> PackView:
    """Show a pack."""
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
            "sharing": standing(row).sharing,
        }
    )


def found(row: Row | None) -> Row:
    """Insist on a row.

    Raises:
        NotFound: there is none.
    """
    if row is None:
        raise NotFound
    return row
