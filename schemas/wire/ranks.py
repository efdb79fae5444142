"""Expected tensors whose ranks are not fixed by the plan."""

from __future__ import annotations

from schemas.maths.adapter import Layout, factor_of
from schemas.wire.header import Expected, Slot


def any_rank(layout: Layout) -> Expected:
    """Return the tensors of a layout at any rank; the caller checks that `A` and `B` agree."""
    return {
        name: Slot((None, shape[1]) if factor_of(name) == "A" else (shape[0], None))
        for name, shape in layout.items()
    }
