"""Serve all that was folded into a base model up to some weights, instead of what they add to it.

An agent that has lost what it folded begins with it anew. It is what the coordinator keeps for the client's
kin anyway, under a head of the client's own; its digest is another than the manifest's, so it is signed for.
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
from coordinator.http.downloads import Stored
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

# Who fetches a range, or asks again, costs no look at megabytes. Ids of payloads are never given again.
_REMEMBERED = 1024
_DIGESTS: dict[tuple[str, int, bytes], str] = {}
_REMEMBERING = Lock()


class BaseModelGroup(NamedTuple):
    """Clients into whose base model the same is folded: those of one base model and one layout."""

    base_model: str
    form: str


def kin_of(base_model: str, layout: Layout) -> BaseModelGroup:
    """Say with whom a client of this base model and layout has its folds in common."""
    return BaseModelGroup(base_model, sha256(repr(sorted(layout.items())).encode()).hexdigest())


def increment(layout: Layout, manifest: WeightsManifest, *, fold_from: int) -> bytes:
    """Write the head of weights that add to what those of round `fold_from` had made of the base model."""
    said = manifest.model_dump() | {"fold_from": fold_from}
    return head(layout, FoldedWeightsManifest.model_validate(said))


def whole(layout: Layout, manifest: WeightsManifest) -> bytes:
    """Write the head of weights that bring all that was folded so far."""
    return increment(layout, manifest, fold_from=1)


def body(database: Database, payload_id: int, layout: Layout, manifest: WeightsManifest) -> Stored:
    """Give what is kept for some kin as one client's weights; its values are read once, for the digest.

    That is remembered in this process.
    """
    beginning, bytes_of_values = whole(layout, manifest), size(layout) * _FLOAT32_BYTES
    seen = sha256(beginning)
    key = str(database.url), payload_id, seen.digest()
    digest = _DIGESTS.get(key)
    if digest is None:
        for piece in payloads.stream(database, payload_id, 0, bytes_of_values):
            seen.update(piece)
        digest = digest_from_hash(seen.hexdigest())
        with _REMEMBERING:
            _DIGESTS[key] = digest
            if len(_DIGESTS) > _REMEMBERED:
                del _DIGESTS[next(iter(_DIGESTS))]
    return Stored(payload_id, digest, len(beginning) + bytes_of_values, MEDIA_TYPE, head=beginning)


def instead_of(database: Database, member: Member, given: ServedWeights) -> Stored | None:
    """Give the whole up to these weights; None where they add to nothing else, or it was forgotten."""
    if given.head is None:
        return None
    said = FoldedWeightsManifest.model_validate_json(read_own_head(given.head)[1][MANIFEST_KEY])
    if said.fold_from in (None, 1):
        return None
    with database.read() as session:
        row = _fold(session, member, given.round_number - 1)
        if row is None or row.payload_id is None:
            return None
        layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}
        payload_id = row.payload_id
    return body(database, payload_id, layout, said)


def _fold(session: Session, member: Member, round_number: int) -> FoldRow | None:
    """What was folded for a client's kin up to the round `round_number`, in which its weights were made?"""
    federation_id = member.federation_id
    opened = open_plan(plan_of(federation(session, federation_id)))
    kin = kin_of(
        member.base_model,
        base_weights.layout(session, federation_id, opened, member.base_model, member.profile),
    )
    return session.scalar(
        select(FoldRow).where(
            FoldRow.federation_id == federation_id,
            FoldRow.base_model == kin.base_model,
            FoldRow.form == kin.form,
            FoldRow.round_number == round_number,
        )
    )
