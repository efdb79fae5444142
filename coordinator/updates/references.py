"""What a client's update is the difference to: its last update that counts, or the weights it was served.

Refuses to decode: it names the reference of a recipe, and reads it tensor by tensor.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from coordinator import payloads
from coordinator.database import Database
from coordinator.rounds import bases
from coordinator.updates import store
from coordinator.updates.intake import Terms
from schemas.maths.adapter import Layout
from schemas.maths.start import from_start
from schemas.wire.envelope import slots
from schemas.wire.header import read_header
from schemas.wire.refusals import BodyRefused

_VALUE_BYTES = 4
_TRANSACTION_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Reference:
    """Float32 values in the order of a client's layout, from byte `begin` of a payload on.

    Attributes:
        digest: what the client calls it by: the digest of its update, or of the weights.
        seed: the plan's, of weights, whose zeros may mean the start; None of an update's state.
    """

    digest: str
    payload_id: int
    begin: int
    seed: int | None


def find(session: Session, terms: Terms) -> Reference | None:
    """Which reference has the plan's recipe for a client in a round it has joined? None = it has none.

    Without an update that counts, `own_last` means the weights. What was stored in another layout is none.
    """
    kind, whom = terms.recipe.reference, terms.address
    if kind == "none":
        return None
    last = store.counted_before(session, whom.client, whom.round) if kind == "own_last" else None
    if last is None:
        return _weights(session, terms)
    if last.state_payload_id is None or store.layout_of(last) != terms.layout:
        return None
    return Reference(last.digest, last.state_payload_id, last.state_begin, None)


def reader(database: Database, reference: Reference, layout: Layout) -> Callable[[str], NDArray[np.float32]]:
    """Give what reads a tensor of the reference, in its shape, in short transactions."""
    begins, at = dict[str, int](), reference.begin
    for name, shape in layout.items():
        begins[name] = at
        at += prod(shape) * _VALUE_BYTES

    def stored(name: str) -> NDArray[np.float32]:
        raw = bytearray(prod(layout[name]) * _VALUE_BYTES)
        view = memoryview(raw)
        for begin in range(0, len(raw), _TRANSACTION_BYTES):
            with database.read() as session:
                piece = view[begin : begin + _TRANSACTION_BYTES]
                payloads.read_into(session, reference.payload_id, begins[name] + begin, piece)
        return np.frombuffer(raw, "<f4").astype(np.float32, copy=False).reshape(layout[name])

    seed = reference.seed
    if seed is None:
        return stored
    return lambda name: from_start(name, stored, seed)


def _weights(session: Session, terms: Terms) -> Reference | None:
    given = bases.newest(session, terms.address.client, terms.address.round)
    if given is None or given.payload_id is None or given.head is None:
        return None
    try:
        read_header(io.BytesIO(given.head), given.size, slots(terms.layout))
    except BodyRefused:
        return None
    return Reference(given.digest, given.payload_id, given.begin, terms.seed)
