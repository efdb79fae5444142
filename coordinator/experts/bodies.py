"""The bodies in which the revisions of experts are served: a head, then the stored float32 values.

All clients are served the same bytes, so a revision's digest is that of its whole body.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.secure_sum import JointModelRow
from schemas.maths.adapter import Layout
from schemas.messages.experts import ExpertManifest
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import head

_LAYOUT = (
    select(JointModelRow.layout)
    .where(JointModelRow.federation_id == bindparam("federation_id"), ~JointModelRow.is_void)
    .order_by(JointModelRow.round_number.desc())
    .limit(1)
)


def expert_head(federation_id: str, expert: int, revision: int, layout: Layout) -> bytes:
    """Return the bytes before the values of a revision; the tensors are float32 in the order of `layout`."""
    manifest = ExpertManifest(federation=federation_id, recipe={}, round=revision, expert=expert)
    return head(layout, manifest)


def digest_and_size(beginning: bytes, values: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Return the digest of a head and the values that follow it, and the number of bytes of both.

    `values` are pieces of the payload, such as those of `payloads.stream`.
    """
    hasher, count = sha256(beginning), len(beginning)
    for piece in values:
        hasher.update(piece)
        count += memoryview(piece).nbytes
    return digest_from_hash(hasher.hexdigest()), count


def layout_of_experts(session: Session, federation_id: str) -> Layout | None:
    """Return the layout of a federation's experts, which is that of its joint model; None = it has none."""
    stored = run(session, _LAYOUT, {"federation_id": federation_id}).scalar()
    if stored is None:
        return None
    return {str(name): tuple(int(extent) for extent in shape) for name, shape in stored}
