"""Decode the streams of an update into a float32 adapter state, one tensor at a time, and clip states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout
from schemas.maths.start import start_values
from schemas.messages.recipes import Recipe
from schemas.wire.digests import digest_from_hash
from schemas.wire.finite_values import squares_of
from schemas.wire.streams import Streams, decode

_PIECE_VALUES = 2**18


class DecodedState:
    """An adapter state, float32 in the order of a layout, in a file of the caller.

    Attributes:
        norm: L2 norm over all tensors.
        size, digest: of its bytes.
    """

    def __init__(
        self,
        streams: Streams,
        layout: Layout,
        recipe: Recipe,
        reference: Callable[[str], NDArray[np.float32]] | None,
        file: BinaryIO,
    ) -> None:
        """Decode the streams into `file`, adding each tensor to the reference's.

        Raises:
            BodyRefused: a stream is malformed, or the state has values that are not finite.
        """
        for _ in decode(streams, layout, recipe):  # reading the reference costs more than decoding twice
            pass
        hasher, squares = sha256(), 0.0
        for name, decoded in decode(streams, layout, recipe):
            values = decoded
            if reference is not None:
                with np.errstate(over="ignore", invalid="ignore"):  # `squares_of` refuses an overflow
                    values = reference(name) + decoded
            pieces = np.array_split(values.reshape(-1), max(1, -(-values.size // _PIECE_VALUES)))
            # Checks the values too: both summands are finite, and their sum may not be.
            squares += squares_of(name, pieces)
            for piece in pieces:
                raw = piece.astype("<f4", copy=False).tobytes()
                hasher.update(raw)
                file.write(raw)
        self._file = file
        self.norm = float(np.sqrt(squares))
        self.size = file.tell()
        self.digest = digest_from_hash(hasher.hexdigest())

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        self._file.seek(0)
        while raw := self._file.read(_PIECE_VALUES * 4):
            yield np.frombuffer(raw, "<f4")


Pieces = Iterable[NDArray[np.float32]]


def clip_scale(limit: float | None, state: Pieces, layout: Layout, seed: int) -> float:
    """Return the factor that brings the L2 norm of state - start down to `limit`, at most 1.

    Args:
        state: float32 in the order of the layout, in pieces of one dimension; not read without a limit.
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
    """Yield start + scale (state - start) as little-endian float32 bytes; with scale 1 the state."""
    if scale == 1.0:
        yield from (piece.astype("<f4", copy=False).tobytes() for piece in state)
        return
    factor = np.float32(scale)
    for piece, start in _with_start(state, layout, seed):
        yield (piece * factor if start is None else start + (piece - start) * factor).astype("<f4").tobytes()


def _with_start(
    state: Pieces, layout: Layout, seed: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32] | None]]:
    """Yield each piece with the start values at its offset; None = they are zero."""
    at = 0
    for piece in state:
        yield piece, start_values(layout, seed, at, piece.size)
        at += piece.size
