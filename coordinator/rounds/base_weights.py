"""Select the weights from which a client starts a round: the newest it was served, or zeros."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Any

from sqlalchemy import bindparam, func, select
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

# Clients poll for their round, and each brief of a new client names a digest over megabytes of zeros. The
# cache is keyed by the hash of the head, which has only kilobytes.
_CACHED_DIGESTS = 1024
_DIGESTS: dict[tuple[bytes, int], str] = {}
_DIGESTS_LOCK = Lock()

SERVED_COLUMNS = (
    WeightsRow.round_number,
    WeightsRow.payload_id,
    WeightsRow.head,
    WeightsRow.begin,
    WeightsRow.digest,
    WeightsRow.bytes,
)
"""The columns of `ServedWeights`, in order."""

_NEWEST = (
    select(*SERVED_COLUMNS)
    .where(WeightsRow.client_id == bindparam("client"))
    .order_by(WeightsRow.round_number.desc())
    .limit(1)
)
_NEWEST_UNTIL = _NEWEST.where(WeightsRow.round_number <= bindparam("number"))
_EACH = (
    select(WeightsRow.client_id, func.max(WeightsRow.round_number).label("number"))
    .where(
        WeightsRow.client_id.in_(bindparam("clients", expanding=True)),
        WeightsRow.round_number <= bindparam("number"),
    )
    .group_by(WeightsRow.client_id)
    .subquery()
)
_NEWEST_OF_EACH = select(WeightsRow.client_id, *SERVED_COLUMNS).join(
    _EACH, (_EACH.c.client_id == WeightsRow.client_id) & (_EACH.c.number == WeightsRow.round_number)
)
_NEWEST_REFERENCE = _NEWEST.with_only_columns(WeightsRow.digest, WeightsRow.bytes)
_NEWEST_NUMBER = _NEWEST.with_only_columns(WeightsRow.round_number)
_NEWEST_REFERENCE_UNTIL = _NEWEST_UNTIL.with_only_columns(WeightsRow.digest, WeightsRow.bytes)
_PACK = select(PackRow.digest).where(
    PackRow.federation_id == bindparam("federation_id"), PackRow.base_model == bindparam("base_model")
)


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """Weights that a client was served: `head`, then the payload from byte `begin` on, if still stored."""

    round_number: int
    payload_id: int | None
    head: bytes | None
    begin: int
    digest: str
    size: int


def newest(session: Session, client_id: str, round_number: int | None = None) -> ServedWeights | None:
    """Return the weights that a client was served last, for round `round_number` or an earlier one."""
    if round_number is None:
        row = run(session, _NEWEST, {"client": client_id}).first()
    else:
        row = run(session, _NEWEST_UNTIL, {"client": client_id, "number": round_number}).first()
    return ServedWeights(*row) if row is not None else None


def newest_of_each(session: Session, clients: Collection[str], round_number: int) -> dict[str, ServedWeights]:
    """Return `newest` of each of these clients that was served any, in their order."""
    if not clients:
        return {}
    rows: Any = run(session, _NEWEST_OF_EACH, {"clients": [*clients], "number": round_number})
    served_last = {client: ServedWeights(*served) for client, *served in rows}
    return {client: served_last[client] for client in clients if client in served_last}


def newest_reference(
    session: Session, client_id: str, round_number: int | None = None
) -> WeightsReference | None:
    """Return the reference of `newest`, without its head, which has hundreds of kilobytes in a deep model."""
    if round_number is None:
        row = run(session, _NEWEST_REFERENCE, {"client": client_id}).first()
    else:
        values = {"client": client_id, "number": round_number}
        row = run(session, _NEWEST_REFERENCE_UNTIL, values).first()
    return WeightsReference(digest=row.digest, bytes=row.bytes) if row is not None else None


def final_round(session: Session, client_id: str, last_published: int) -> int:
    """Return the round number of a client's final weights: after its last weights, and the last published.

    A client that began anew under another alignment pack has weights for a later round than the one after the
    last published round, whose number may be that of an abandoned round with other weights.
    """
    newest_number = run(session, _NEWEST_NUMBER, {"client": client_id}).scalar()
    return max(last_published + 1, newest_number or 0)


def reference(weights: ServedWeights) -> WeightsReference:
    return WeightsReference(digest=weights.digest, bytes=weights.size)


def pack_digest(session: Session, federation_id: str, base_model: str) -> str | None:
    """Return the digest of a base model's alignment pack; None = none is stored."""
    return run(session, _PACK, {"federation_id": federation_id, "base_model": base_model}).scalar()


def layout(
    session: Session, federation_id: str, opened: OpenedPlan, base_model: str, profile: Profile
) -> Layout:
    """Return the layout of a client's adapter; {} while its alignment pack is missing."""
    is_aligned = opened.plan.alignment is not None
    selected = pack_selected(session, federation_id, base_model) if is_aligned else None
    return layout_of(opened, profile, selected)


def zeros(tensors: Layout, manifest: WeightsManifest) -> tuple[WeightsReference, Zeros]:
    body = Zeros(head(tensors, manifest), size(tensors) * _FLOAT32_BYTES)
    weights = WeightsReference(digest=_digest(body.head, body.size), bytes=len(body.head) + body.size)
    return weights, body


@dataclass(frozen=True, slots=True)
class Zeros:
    """A client's head and `size` bytes of zeros, whose payload all new clients share."""

    head: bytes
    size: int

    @property
    def digest(self) -> str:
        return _digest(b"", self.size)

    def pieces(self) -> Iterator[bytes]:

        for offset in range(0, self.size, CHUNK_BYTES):
            yield bytes(min(CHUNK_BYTES, self.size - offset))


def _digest(prefix: bytes, size: int) -> str:
    hasher = sha256(prefix)
    key = hasher.digest(), size
    digest = _DIGESTS.get(key)
    if digest is None:
        for piece in Zeros(prefix, size).pieces():
            hasher.update(piece)
        digest = digest_from_hash(hasher.hexdigest())
        with _DIGESTS_LOCK:
            _DIGESTS[key] = digest
            # The oldest entry goes: dictionaries keep the order of insertion.
            if len(_DIGESTS) > _CACHED_DIGESTS:
                del _DIGESTS[next(iter(_DIGESTS))]
    return digest
