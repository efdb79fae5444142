"""Turn the streams of an update into the adapter state that they mean, float32, one tensor at a time.

Refuses to judge the state: it is looked at as the values of a dense body are, and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout
from schemas.messages.recipes import Recipe
from schemas.wire.coding import Streams, decode
from schemas.wire.digests import digest_from_hash
from schemas.wire.ordinary import squares_of

_PIECE_VALUES = 2**18


class DecodedState:
    """An adapter state, float32 in the order of a layout, in a file that outlives it.

    Attributes:
        norm: L2 over all of its tensors together.
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
        """Decode into `file`, adding each tensor to that of the reference.

        Raises:
            BodyRefused: a stream is malformed, or the state has values that are not ordinary numbers.
        """
        for _ in decode(streams, layout, recipe):  # reading the reference costs more than looking twice
            pass
        seen, squares = sha256(), 0.0
        for name, sent in decode(streams, layout, recipe):
            values = sent
            if reference is not None:
                with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused just below
                    values = reference(name) + sent
            pieces = np.array_split(values.reshape(-1), max(1, -(-values.size // _PIECE_VALUES)))
            squares += squares_of(name, pieces)
            for piece in pieces:
                raw = piece.astype("<f4", copy=False).tobytes()
                seen.update(raw)
                file.write(raw)
        self._file = file
        self.norm = float(np.sqrt(squares))
        self.size = file.tell()
        self.digest = digest_from_hash(seen.hexdigest())

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """Give the state, in pieces of a mebibyte at most."""
        self._file.seek(0)
        while raw := self._file.read(_PIECE_VALUES * 4):
            yield np.frombuffer(raw, "<f4")
