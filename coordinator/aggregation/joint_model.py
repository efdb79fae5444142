"""The model that all clients of a summed federation have in common: read it block by block, and serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import Database, run
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.http.downloads import StoredBody
from coordinator.storage import payloads
from coordinator.totals import Floats
from schemas.maths.adapter import Layout, factor_of, size
from schemas.maths.start import from_start, start_values
from schemas.messages.updates import WeightsManifest
from schemas.secure_sum.segments import segment_of
from schemas.wire.digests import digest_from_hash
from schemas.wire.envelope import MEDIA_TYPE, head

VALUE_BYTES = 4
_AHEAD = 2**14  # 64 KiB: many small tensors are read at once
_LATEST = (
    select(JointModelRow.layout, JointModelRow.payload_id)
    .where(
        JointModelRow.federation_id == bindparam("federation_id"),
        JointModelRow.round_number <= bindparam("until"),
        ~JointModelRow.is_void,
    )
    .order_by(JointModelRow.round_number.desc())
    .limit(1)
)

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StoredJointModel:
    """A stored joint model: float32 values in the order of `layout`."""

    layout: Layout
    payload_id: int


@dataclass(frozen=True, slots=True)
class PublishedJointModel(StoredJointModel):
    """A joint model to be stored: `digest` is that of its values, `losses` the mean losses of the members."""

    digest: str
    losses: Mapping[str, float]


def latest(session: Session, federation_id: str, until: int) -> StoredJointModel | None:
    """Return the joint model that was published last, by round `until` or before; None = none counts.

    Raises:
        LookupError: its payload was deleted by retention.
    """
    row = run(session, _LATEST, {"federation_id": federation_id, "until": until}).first()
    if row is None:
        return None
    stored, payload_id = row
    if payload_id is None:
        raise LookupError(f"the joint model up to round {until} was deleted by retention")
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in stored}
    return StoredJointModel(layout, payload_id)


def store(session: Session, federation_id: str, round_number: int, model: PublishedJointModel) -> None:
    session.add(
        JointModelRow(
            federation_id=federation_id,
            round_number=round_number,
            layout=[[name, list(shape)] for name, shape in model.layout.items()],
            digest=model.digest,
            payload_id=model.payload_id,
            losses=dict(model.losses),
        )
    )


def newcomer_weights(
    database: Database, until: int, layout: Layout, manifest: WeightsManifest
) -> StoredBody | None:
    """Return the joint model after round `until` as the weights of one client; None = there is none yet.

    Raises:
        LookupError: the model has another layout, or was deleted by retention.
    """
    with database.read() as session:
        model = latest(session, manifest.federation, until)
    if model is None:
        return None
    if model.layout != layout:
        raise LookupError("a client whose layout is not that of the joint model has joined")
    beginning, bytes_of_values = head(layout, manifest), size(layout) * VALUE_BYTES
    hasher = sha256(beginning)
    for piece in payloads.stream(database, model.payload_id, 0, bytes_of_values):
        hasher.update(piece)
    digest = digest_from_hash(hasher.hexdigest())
    return StoredBody(model.payload_id, digest, len(beginning) + bytes_of_values, MEDIA_TYPE, head=beginning)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The positions of a tensor's first of `count` values: in its segment, and in the layout."""

    tensor: str
    segment: str
    begin: int
    at: int
    count: int


def places_of(layout: Layout) -> list[TensorPlace]:
    """Return the places of all tensors of a layout, in order."""
    places, at = [], 0
    begins: dict[str, int] = {}
    for tensor, shape in layout.items():
        segment, count = segment_of(tensor), prod(shape)
        begin = begins.get(segment, 0)
        places.append(TensorPlace(tensor, segment, begin, at, count))
        begins[segment] = begin + count
        at += count
    return places


@dataclass
class PayloadValues:
    """Numbers of one type, `count` of them from the beginning of a payload; reads are cheapest in order."""

    database: Database
    payload_id: int
    dtype: str
    count: int
    _begin: int = field(init=False, default=0)
    _window: NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._window = np.zeros(0, self.dtype)

    def read(self, begin: int, count: int) -> NDArray[Any]:
        """Return `count` numbers from `begin` on, (count,).

        Raises:
            LookupError: there are fewer, or the payload was deleted.
        """
        if begin < 0 or begin + count > self.count:
            raise LookupError(f"payload {self.payload_id} has no numbers {begin} to {begin + count}")
        at = begin - self._begin
        # Each read is a transaction, so that small tensors, which follow each other, are read ahead.
        if at < 0 or at + count > len(self._window):
            end = min(self.count, begin + max(count, _AHEAD))
            width = np.dtype(self.dtype).itemsize
            octets = payloads.read_alone(self.database, self.payload_id, width * begin, width * end)
            self._begin, self._window, at = begin, np.frombuffer(octets, self.dtype), 0
        return self._window[at : at + count]


class JointModel:
    """The values that all clients began a round with (`coordinator.totals.JointValues`).

    Args:
        payload_id: None before the first published sum: clients then begin with the start.
        seed: that of the start.
        dtype: that of the stored values.
    """

    def __init__(
        self, database: Database, layout: Layout, payload_id: int | None, seed: int, dtype: str = "<f4"
    ) -> None:
        self._layout = layout
        self._seed = seed
        self._places = places_of(layout)
        self._stored = (
            PayloadValues(database, payload_id, dtype, size(layout)) if payload_id is not None else None
        )
        self._started: tuple[str, Values] | None = None

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(sorted({place.segment for place in self._places}))

    def read(self, segment: str, begin: int, count: int) -> Floats:
        """Return `count` values of a segment from `begin` on, (count,), with the start in place of zeros.

        Raises:
            LookupError: the model has no such values, or retention has deleted them.
        """
        values = np.zeros(count)
        filled = 0
        for place in self._places:
            low, high = max(begin, place.begin), min(begin + count, place.begin + place.count)
            if place.segment == segment and low < high:
                values[low - begin : high - begin] = self._part(place, low - place.begin, high - low)
                filled += high - low
        if filled != count:
            raise LookupError(f"segment {segment} has no values {begin} to {begin + count}")
        return values

    def tensor(self, name: str) -> Values:
        """Return a tensor in its shape, float32, with the start in place of zeros."""
        place = next(place for place in self._places if place.tensor == name)
        values = self.read(place.segment, place.begin, place.count)
        return np.asarray(values, np.float32).reshape(self._layout[name])

    def _part(self, place: TensorPlace, begin: int, count: int) -> Values:
        at = place.at + begin
        if self._stored is None:
            start = start_values(self._layout, self._seed, at, count)
            return start if start is not None else np.zeros(count, np.float32)
        values: Values = self._stored.read(at, count)
        # Only an A of zeros may stand for the start; P, Q and B begin with zeros.
        if factor_of(place.tensor) != "A" or values.any():
            return values
        return self._from_start(place, self._stored)[begin : begin + count]

    def _from_start(self, place: TensorPlace, stored: PayloadValues) -> Values:
        """Return a tensor in which zeros may stand for the start; the last one is remembered."""
        # Blocks of one tensor follow each other: remembering one tensor is enough.
        if self._started is None or self._started[0] != place.tensor:
            places = {tensor.tensor: tensor for tensor in self._places}

            def read(name: str) -> Values:
                source = places[name]
                values: Values = stored.read(source.at, source.count)
                return values.reshape(self._layout[name])

            values = from_start(place.tensor, read, self._seed, self._layout)
            self._started = place.tensor, values.reshape(-1)
        return self._started[1]
