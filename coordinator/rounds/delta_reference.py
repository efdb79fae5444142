"""Find and read the reference of a delta: a client's last update that counts, or its served weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.db.engine import Database
from coordinator.db.tables.federations import UpdateRow
from coordinator.rounds import base_weights
from coordinator.storage import payloads
from schemas.maths.adapter import Layout, at_rank, factor_of
from schemas.maths.factors import resized
from schemas.maths.start import from_start
from schemas.messages import recipes
from schemas.wire.header import read_own_head

_VALUE_BYTES = 4
_TRANSACTION_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Reference:
    """Float32 values in the order of a client's layout, from byte `begin` of a payload on.

    Attributes:
        digest: digest of the update or of the weights, by which the client refers to it.
        layout: the tensors of the payload; a base delta may be among them, and A and B of another rank.
        seed: the plan's seed, for weights, whose zeros may stand for the start; None for an update's state.
    """

    digest: str
    payload_id: int
    begin: int
    layout: Layout
    seed: int | None


def find(
    session: Session,
    client_id: str,
    round_number: int,
    kind: recipes.Reference,
    layout: Layout,
    seed: int,
    *,
    mixed_ranks: bool = False,
) -> Reference | None:
    """Return a client's reference of this kind in a round that it has joined; None = it has none.

    For `own_last` without an update that counts, this is the served weights. Values in another layout are
    no reference; with `mixed_ranks` they may have another rank.
    """
    if kind == "none":
        return None
    last = _counted_before(session, client_id, round_number) if kind == "own_last" else None
    if last is None:
        return _weights(session, client_id, round_number, layout, seed, mixed_ranks=mixed_ranks)
    return _state_reference(last, layout, mixed_ranks=mixed_ranks)


def own_last(session: Session, client_id: str, round_number: int, layout: Layout) -> Reference | None:
    """Return a client's last update that counts before a round; None = none in this layout is stored."""
    last = _counted_before(session, client_id, round_number)
    return _state_reference(last, layout) if last is not None else None


def _state_reference(last: UpdateRow, layout: Layout, *, mixed_ranks: bool = False) -> Reference | None:
    stored = layout_of(last)
    if last.state_payload_id is None or not _is_same(stored, layout, mixed_ranks=mixed_ranks):
        return None
    return Reference(last.digest, last.state_payload_id, last.state_begin, stored, None)


def _is_same(stored: Layout, layout: Layout, *, mixed_ranks: bool) -> bool:
    return at_rank(stored, 1) == at_rank(layout, 1) if mixed_ranks else stored == layout


def layout_of(row: UpdateRow) -> Layout:
    return {str(name): tuple(int(extent) for extent in shape) for name, shape in row.layout}


def reader(database: Database, reference: Reference, layout: Layout) -> Callable[[str], NDArray[np.float32]]:
    """Return a function that reads a tensor of the reference in the shape of `layout`, in short transactions.

    A tensor that the reference lacks is zero.
    """
    begins, offset = dict[str, int](), reference.begin
    for name, shape in reference.layout.items():
        begins[name] = offset
        offset += prod(shape) * _VALUE_BYTES

    def stored(name: str) -> NDArray[np.float32]:
        if name not in begins:
            return np.zeros(layout[name], np.float32)
        shape = reference.layout[name]
        raw = bytearray(prod(shape) * _VALUE_BYTES)
        view = memoryview(raw)
        # In short transactions: on SQLite a reader may keep writers waiting.
        for begin in range(0, len(raw), _TRANSACTION_BYTES):
            with database.driver_connection() as driver:
                piece = view[begin : begin + _TRANSACTION_BYTES]
                payloads.read_into(driver, reference.payload_id, begins[name] + begin, piece)
        values = np.frombuffer(raw, "<f4").astype(np.float32, copy=False).reshape(shape)
        return resized(values, layout[name])

    seed = reference.seed
    if seed is None:
        return stored
    return lambda name: from_start(name, stored, seed, layout)


def _counted_before(session: Session, client_id: str, round_number: int) -> UpdateRow | None:
    return session.scalar(
        select(UpdateRow)
        .where(UpdateRow.client_id == client_id, UpdateRow.reject_reason.is_(None))
        .where(UpdateRow.round_number < round_number)
        .order_by(UpdateRow.round_number.desc())
        .limit(1)
    )


def _weights(
    session: Session, client_id: str, round_number: int, layout: Layout, seed: int, *, mixed_ranks: bool
) -> Reference | None:
    served = base_weights.newest(session, client_id, round_number)
    if served is None or served.payload_id is None or served.head is None:
        return None
    stored, _ = read_own_head(served.head)
    adapter = {name: shape for name, shape in stored.items() if factor_of(name) not in ("RA", "RB")}
    # With a base delta A and B may begin anew.
    if adapter and not _is_same(adapter, layout, mixed_ranks=mixed_ranks):
        return None
    return Reference(served.digest, served.payload_id, served.begin, stored, seed)
