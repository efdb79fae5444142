"""Serve the sum of all base deltas up to some weights, instead of the last one, to an agent that lost them.

The sum is stored for the client's group, and served with a head of the client's own. Its digest differs from
the manifest's, so the response is signed.
"""

from __future__ import annotations

from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member
from coordinator.db.engine import Database
from coordinator.db.tables.federations import FoldRow
from coordinator.federations.store import federation, plan_of
from coordinator.http.downloads import StoredBody
from coordinator.rounds import base_weights
from coordinator.rounds.base_weights import ServedWeights
from coordinator.storage import payloads
from coordinator.strategies.opening import open_plan
from schemas.maths.adapter import Layout, size
from schemas.messages.updates import FoldedWeightsManifest, WeightsManifest
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import MANIFEST_KEY, MEDIA_TYPE, head
from schemas.wire.header import read_own_head

_FLOAT32_BYTES = 4

# Ranges and repeated requests need not read megabytes again. Ids of payloads are never reused.
_REMEMBERED = 1024
_DIGESTS: dict[tuple[str, int, bytes], str] = {}
_REMEMBERING = Lock()


class BaseModelGroup(NamedTuple):
    """Clients with the same base deltas: those of one base model and one layout."""

    base_model: str
    form: str


def group_of(base_model: str, layout: Layout) -> BaseModelGroup:
    return BaseModelGroup(base_model, sha256(repr(sorted(layout.items())).encode()).hexdigest())


def increment_head(layout: Layout, manifest: WeightsManifest, *, fold_from: int) -> bytes:
    """Return the head of weights with a base delta relative to the base model of round `fold_from`."""
    fields = manifest.model_dump() | {"fold_from": fold_from}
    return head(layout, FoldedWeightsManifest.model_validate(fields))


def whole_head(layout: Layout, manifest: WeightsManifest) -> bytes:
    return increment_head(layout, manifest, fold_from=1)


def group_weights(
    database: Database, payload_id: int, layout: Layout, manifest: WeightsManifest
) -> StoredBody:
    """Return the stored sum of a group as the weights of one client; this process caches their digest."""
    beginning, bytes_of_values = whole_head(layout, manifest), size(layout) * _FLOAT32_BYTES
    running = sha256(beginning)
    key = str(database.url), payload_id, running.digest()
    digest = _DIGESTS.get(key)
    if digest is None:
        for piece in payloads.stream(database, payload_id, 0, bytes_of_values):
            running.update(piece)
        digest = digest_from_hash(running.hexdigest())
        with _REMEMBERING:
            _DIGESTS[key] = digest
            if len(_DIGESTS) > _REMEMBERED:
                del _DIGESTS[next(iter(_DIGESTS))]
    return StoredBody(payload_id, digest, len(beginning) + bytes_of_values, MEDIA_TYPE, head=beginning)


def whole_delta(database: Database, member: Member, weights: ServedWeights) -> StoredBody | None:
    """Return the sum of base deltas up to these weights; None = they are complete, or it was deleted."""
    if weights.head is None:
        return None
    manifest = FoldedWeightsManifest.model_validate_json(read_own_head(weights.head)[1][MANIFEST_KEY])
    # Weights relative to the original base model contain the whole delta already.
    if manifest.fold_from in (None, 1):
        return None
    with database.read() as session:
        row = _row(session, member, weights.round_number - 1)
        if row is None or row.payload_id is None:
            return None
        layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}
        payload_id = row.payload_id
    return group_weights(database, payload_id, layout, manifest)


def _row(session: Session, member: Member, round_number: int) -> FoldRow | None:
    federation_id = member.federation_id
    opened = open_plan(plan_of(federation(session, federation_id)))
    group = group_of(
        member.base_model,
        base_weights.layout(session, federation_id, opened, member.base_model, member.profile),
    )
    return session.scalar(
        select(FoldRow).where(
            FoldRow.federation_id == federation_id,
            FoldRow.base_model == group.base_model,
            FoldRow.form == group.form,
            FoldRow.round_number == round_number,
        )
    )
