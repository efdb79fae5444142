"""Outputs of a model on public texts, in a form that does not depend on its tokenizer.

A row belongs to one character of an answer, or to its end. It has the likeliest first bytes of the next token
there, in UTF-8, with their probabilities; zeros where no token of this tokenizer begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from schemas.wire.envelope import Array, Envelope
from schemas.wire.errors import TensorSchema
from schemas.wire.header import Expected, Slot

BYTES: Final = "outputs.bytes"
SHARES: Final = "outputs.shares"
TOP: Final = 8
"""How many bytes a row has."""

END: Final = 0xFF
"""The end of an answer; no UTF-8 text has this byte."""

VALUES: Final = 256
"""How many bytes there are, `END` included."""

ROW_BYTES: Final = TOP * 3
"""The encoded size of a row."""

MOST_ROWS: Final = 2**17
"""The largest number of rows: 3 MB."""

# How many rows are mixed at a time: 4 MB for each array.
_BLOCK_ROWS = 4096

# Eight float16 numbers that sum to 1 are off by less.
_ROUNDING = 1e-2


@dataclass(frozen=True, slots=True)
class Outputs:
    """Bytes (rows, TOP) uint8, and their probabilities (rows, TOP) float16."""

    bytes: NDArray[np.uint8]
    shares: NDArray[np.float16]

    @classmethod
    def of(cls, shares: NDArray[np.float32]) -> Self:
        """Return the largest probabilities of each row of `shares` (rows, VALUES)."""
        # Stable, so that equal probabilities are listed in the same order everywhere.
        largest = np.argsort(-shares, axis=1, kind="stable")[:, :TOP]
        return cls(largest.astype(np.uint8), np.take_along_axis(shares, largest, axis=1).astype(np.float16))

    @classmethod
    def read(cls, envelope: Envelope) -> Self | None:
        """Read and validate the outputs of a body; None if it has none.

        Raises:
            TensorSchema: one tensor of the two is missing, there are too many rows, or a row is no
                distribution.
        """
        names = {BYTES, SHARES} & set(envelope.names)
        if not names:
            return None
        if len(names) == 1 or envelope.shape(BYTES) != envelope.shape(SHARES):
            raise TensorSchema(f"send {BYTES} and {SHARES} of one shape, or neither")
        rows = envelope.shape(BYTES)[0]
        if not 0 < rows <= MOST_ROWS:
            raise TensorSchema(f"{BYTES} has {rows} rows; send 1 to {MOST_ROWS}")
        shares = envelope.read(SHARES)
        wide = shares.astype(np.float32)
        # Values that are not numbers fail both comparisons.
        if not (np.all(wide >= 0) and np.all(wide.sum(axis=1) <= 1 + _ROUNDING)):
            raise TensorSchema(
                f"a row of {SHARES} is not a distribution; send probabilities with a sum of at most 1"
            )
        listed = np.asarray(envelope.read(BYTES), np.uint8)
        # Bytes without a share count as different ones.
        ordered = np.sort(np.where(wide > 0, listed, VALUES + np.arange(TOP)), axis=1)
        if np.any(ordered[:, 1:] == ordered[:, :-1]):
            raise TensorSchema(f"a row of {BYTES} has a byte twice; send each once")
        return cls(listed, np.asarray(shares, np.float16))

    @property
    def tensors(self) -> dict[str, Array]:
        return {BYTES: self.bytes, SHARES: self.shares}

    def dense(self) -> NDArray[np.float32]:
        """Return the probabilities of all bytes, (rows, VALUES); those that are not listed are 0."""
        dense = np.zeros((len(self.bytes), VALUES), np.float32)
        np.add.at(dense, (np.arange(len(dense))[:, None], self.bytes), self.shares.astype(np.float32))
        return dense


def slots() -> Expected:
    """Return the tensors that a body may have; `Outputs.read` validates their values."""
    return {
        BYTES: Slot((None, TOP), frozenset({"U8"}), optional=True, coded=True),
        SHARES: Slot((None, TOP), frozenset({"F16"}), optional=True, coded=True),
    }


def rows_of(answers: Iterable[str]) -> int:
    """Return the number of rows of outputs on texts with these answers: one per character and end."""
    return sum(len(answer) + 1 for answer in answers)


def mixed(
    outputs: Sequence[Outputs],
    weights: NDArray[np.float64],
    is_served: Callable[[NDArray[np.float64]], bool] | None = None,
) -> Outputs:
    """Return the weighted mean of n outputs of one shape; each row over the outputs that have the row.

    p_mix = sum_j w_j p_j / sum_j w_j [p_j > 0]. A row sums to less than 1 by the bytes that peers left out.

    Args:
        weights: w, (n,).
        is_served: whether a row is served, by the weights (n,) of the outputs that have it, 0 for the others;
            rows that are not served are zeros. None = all are served.
    """
    shares = np.stack([output.shares.any(axis=1) for output in outputs], axis=1) * weights  # (rows, n)
    # Few patterns of peers occur in many rows, and each is judged once.
    patterns, pattern_of = np.unique(shares, axis=0, return_inverse=True)
    may_serve = [pattern.any() and (is_served is None or is_served(pattern)) for pattern in patterns]
    served = np.array(may_serve, bool)[pattern_of.ravel()]  # (rows,)
    blocks: list[Outputs] = []
    for begin in range(0, len(shares), _BLOCK_ROWS):
        at = slice(begin, begin + _BLOCK_ROWS)
        total = np.zeros((len(shares[at]), VALUES), np.float32)
        for output, weight in zip(outputs, weights, strict=True):
            total += np.float32(weight) * Outputs(output.bytes[at], output.shares[at]).dense()
        present = np.where(served[at], shares[at].sum(axis=1), 0.0).astype(np.float32)[:, None]
        mean = np.divide(total, present, out=np.zeros_like(total), where=present > 0)
        # A peer's row may sum to a little more than 1, and receivers refuse what rounding adds to that.
        blocks.append(Outputs.of(mean / np.maximum(mean.sum(axis=1, keepdims=True), 1)))
    return Outputs(
        np.concatenate([block.bytes for block in blocks]), np.concatenate([block.shares for block in blocks])
    )
