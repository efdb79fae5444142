"""Which weights a client starts a round from: the newest it was given, or zeros. Refuses to aggregate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.db.engine import run
from coordinator.db.tables.alignment import PackRow
from coordinator.db.tables.federations import WeightsRow
from coordinator.federations.layouts import layout_of
from coordinator.federations.store import pack_selected
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout, size
from schemas.messages.enrolment import Profile
from schemas.messages.rounds import WeightsReference
from schemas.messages.updates import WeightsManifest
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import head

_FLOAT32_BYTES = 4

# A client asks for its round again and again until the round begins, and the answer is a hash of megabytes.
# Remembered by the head's hash: a head is kilobytes.
_REMEMBERED = 1024
_DIGESTS: dict[tuple[bytes, int], str] = {}
_REMEMBERING = Lock()

GIVEN = (
    WeightsRow.round_number,
    WeightsRow.payload_id,
    WeightsRow.head,
    WeightsRow.begin,
    WeightsRow.digest,
    WeightsRow.bytes,
)
"""The columns of `ServedWeights`, in its order."""

_NEWEST = (
    select(*GIVEN)
    .where(WeightsRow.client_id == bindparam("client"))
    .order_by(WeightsRow.round_number.desc())
    .limit(1)
)
_NEWEST_UNTIL = _NEWEST.where(WeightsRow.round_number <= bindparam("number"))
_PACK = select(PackRow.digest).where(
    PackRow.federation_id == bindparam("federation_id"), PackRow.base_model == bindparam("base_model")
)


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """Weights that a client was given: `head`, then the payload, if kept, from `begin` on."""

    round_number: int
    payload_id: int | None
    head: bytes | None
    begin: int
    digest: str
    size: int


def newest(session: Session, client_id: str, round_number: int | None = None) -> ServedWeights | None:
    """Which weights was a client given last, for round `round_number` or before?"""
    if round_number is None:
        found = run(session, _NEWEST, {"client": client_id}).first()
    else:
        found = run(session, _NEWEST_UNTIL, {"client": client_id, "number": round_number}).first()
    return ServedWeights(*found) if found is not None else None


def reference(given: ServedWeights) -> WeightsReference:
    """Name weights."""
    return WeightsReference(digest=given.digest, bytes=given.size)


def pack_digest(session: Session, federation_id: str, base_model: str) -> str | None:
    """Which alignment pack does a base model have? None = none is stored."""
    return run(session, _PACK, {"federation_id": federation_id, "base_model": base_model}).scalar()


def layout(
    session: Session, federation_id: str, opened: OpenedPlan, base_model: str, profile: Profile
) -> Layout:
    """Which tensors does a client have? {} while its alignment pack is missing."""
    is_aligned = opened.plan.alignment is not None
    selected = pack_selected(session, federation_id, base_model) if is_aligned else None
    return layout_of(opened, profile, selected)


def zeros(tensors: Layout, manifest: WeightsManifest) -> tuple[WeightsReference, Zeros]:
    """Make a body of zeros: its name, and what it is made of."""
    made = Zeros(head(tensors, manifest), size(tensors) * _FLOAT32_BYTES)
    named = WeightsReference(digest=_digest(made.head, made.size), bytes=len(made.head) + made.size)
    return named, made


@dataclass(frozen=True, slots=True)
class Zeros:
    """A head of a client's own, and `size` bytes of zeros, which it shares with all who start anew."""

    head: bytes
    size: int

    @property
    def digest(self) -> str:
        """The digest of the zeros, without the head."""
        return _digest(b"", self.size)

    def pieces(self) -> Iterator[bytes]:
        """Give the zeros in pieces of a chunk at most."""
        for at in range(0, self.size, CHUNK_BYTES):
            yield bytes(min(CHUNK_BYTES, self.size - at))


def _digest(beginning: bytes, size: int) -> str:
    seen = sha256(beginning)
    key = seen.digest(), size
    known = _DIGESTS.get(key)
    if known is None:
        for piece in Zeros(beginning, size).pieces():
            seen.update(piece)
        known = digest_from_hash(seen.hexdigest())
        with _REMEMBERING:
            _DIGESTS[key] = known
            if len(_DIGESTS) > _REMEMBERED:
                del _DIGESTS[next(iter(_DIGESTS))]
    return known
