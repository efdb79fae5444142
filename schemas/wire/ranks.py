"""Expect A and B of ranks that are not known beforehand."""

from __future__ import annotations

from schemas.maths.adapter import Layout, factor_of
from schemas.wire.header import Expected, Slot


def any_rank(layout: Layout) -> Expected:
    """Expect the tensors of a layout in any rank; that they agree on one is for the reader to see."""
    return {
        name: Slot((None, shape[1]) if factor_of(name) == "A" else (shape[0], None))
        for name, shape in layout.items()
    }
