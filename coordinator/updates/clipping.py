"""Scale down what an update has learnt to `limits.clip_norm`. Pure.

What was learnt is the state minus the start that all have in common (`schemas.maths.start`). Were an ordinary
LoRA's drawn A scaled with it, what is left would be mostly A, and any two updates would agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout
from schemas.maths.start import start_values

Pieces = Iterable[NDArray[np.float32]]


def scale_to(limit: float | None, state: Pieces, layout: Layout, seed: int) -> float:
    """Say by what to scale: 1, or what brings the L2 norm of what was learnt down to `limit`.

    `state` is float32 in the order of the layout, in pieces of one dimension; without a limit it is not read.
    """
    if limit is None:
        return 1.0
    squares = 0.0
    for piece, start in _with_start(state, layout, seed):
        wide = piece.astype(np.float64)
        if start is not None:
            wide -= start
        squares += float(np.einsum("i,i->", wide, wide))
    norm = float(np.sqrt(squares))
    return limit / norm if norm > limit else 1.0


def scaled(state: Pieces, layout: Layout, seed: int, scale: float) -> Iterator[bytes]:
    """Give start + scale (state - start) as bytes, piece by piece; with scale 1 the state as it is."""
    if scale == 1.0:
        yield from (piece.astype("<f4", copy=False).tobytes() for piece in state)
        return
    by = np.float32(scale)
    for piece, start in _with_start(state, layout, seed):
        yield (piece * by if start is None else start + (piece - start) * by).astype("<f4").tobytes()


def _with_start(
    state: Pieces, layout: Layout, seed: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32] | None]]:
    """Give each piece with the start's values at its place; None = they are zero."""
    at = 0
    for piece in state:
        yield piece, start_values(layout, seed, at, piece.size)
        at += piece.size
