"""The bodies in which the revisions of experts are served: a head, then the stored float16 values.

All clients are served the same bytes, so a revision's digest is that of its whole body.
"""

from __future__ import annotations

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.experts import ExpertRevisionRow
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.errors import NotFound
from coordinator.http.downloads import StoredBody
from schemas.maths.adapter import Layout
from schemas.messages.experts import ExpertManifest
from schemas.wire.envelope import MEDIA_TYPE, head

_REVISION = (
    select(
        ExpertRevisionRow.payload_id, ExpertRevisionRow.digest, ExpertRevisionRow.bytes, JointModelRow.layout
    )
    .join(
        JointModelRow,
        (JointModelRow.federation_id == ExpertRevisionRow.federation_id)
        & (JointModelRow.round_number == ExpertRevisionRow.round_number),
    )
    .where(
        ExpertRevisionRow.federation_id == bindparam("federation_id"),
        ExpertRevisionRow.expert == bindparam("expert"),
        ExpertRevisionRow.round_number == bindparam("revision"),
    )
)


def expert_head(federation_id: str, expert: int, revision: int, layout: Layout) -> bytes:
    """Return the bytes before the values of a revision; the tensors are float16 in the order of `layout`."""
    manifest = ExpertManifest(federation=federation_id, recipe={}, round=revision, expert=expert)
    return head(layout, manifest, "F16")


def stored_revision(session: Session, federation_id: str, expert: int, revision: int) -> StoredBody:
    """Return the body of a revision; its layout is that of the joint model of the same round.

    Raises:
        NotFound: there is no such revision, or retention has deleted its values.
    """
    row = run(
        session, _REVISION, {"federation_id": federation_id, "expert": expert, "revision": revision}
    ).first()
    if row is None or row.payload_id is None:
        raise NotFound
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}
    beginning = expert_head(federation_id, expert, revision, layout)
    return StoredBody(row.payload_id, row.digest, row.bytes, MEDIA_TYPE, head=beginning)
