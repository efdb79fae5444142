"""Decide which ranks an update may have where clients choose theirs. Pure: shapes in, shapes out."""

from __future__ import annotations

from schemas.maths.adapter import Layout, at_rank, factor_of
from schemas.wire.envelope import Envelope
from schemas.wire.refusals import TensorSchema


def sent_layout(envelope: Envelope, layout: Layout, least: int) -> Layout:
    """Give the layout that an update has: that of the plan, at one rank from `least` to the plan's.

    Raises:
        TensorSchema: its ranks differ, or it has fewer or more of them.
    """
    first, shape = next(iter(layout.items()))
    axis = 0 if factor_of(first) == "A" else 1
    rank, most = envelope.shape(first)[axis], shape[axis]
    sent = at_rank(layout, rank)
    if not least <= rank <= most or any(envelope.shape(name) != sent[name] for name in layout):
        raise TensorSchema(f"all tensors have one rank here, from {least} to {most}")
    return sent
