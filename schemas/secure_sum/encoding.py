"""Fixed-point encoding of tensors for sums modulo 2^m.

q = round(clip(w x, -C, C) (2^(b-1) - 1) / C), rounded stochastically so that the sum is unbiased. N members
fit if N (2^(b-1) - 1) < 2^(m-1): the sum of all q then never wraps. Clips C are integers in units of 2^-20,
because signed documents have no fractions.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.secure_sum.errors import SecureSumError, SumOutOfRange
from schemas.secure_sum.masks import keystream

CLIP_UNIT = 2.0**-20
MODULI = (16, 24, 32)
LEAST_WEIGHT = 1 / 64

Quantised = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Modulus:
    """Words of m bits: 16, 24 or 32. Arithmetic runs in the next machine word and is reduced at the end."""

    bits: int

    @property
    def word(self) -> np.dtype[np.unsignedinteger]:
        return np.dtype("<u2" if self.bits == 16 else "<u4")

    def packed_bytes(self, values: int) -> int:
        return values * self.bits // 8

    def pack(self, words: NDArray[np.unsignedinteger]) -> bytes:
        """Return words (n,) as n m/8 little-endian bytes; higher bits of a word are dropped."""
        octets = np.ascontiguousarray(words, self.word).view(np.uint8).reshape(len(words), self.word.itemsize)
        return octets[:, : self.bits // 8].tobytes()

    def unpack(self, octets: bytes | memoryview) -> NDArray[np.unsignedinteger]:
        """Return packed words as an array (n,).

        Raises:
            SecureSumError: the octets end within a word.
        """
        size = self.bits // 8
        if len(octets) % size:
            raise SecureSumError(f"a masked vector has a multiple of {size} bytes")
        # NumPy has no words of 24 bits: they are widened to 32.
        whole = np.zeros((len(octets) // size, self.word.itemsize), np.uint8)
        whole[:, :size] = np.frombuffer(octets, np.uint8).reshape(-1, size)
        return whole.view(self.word).reshape(-1)

    def signed(self, words: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """Return words modulo 2^m as two's complement numbers (n,)."""
        reduced = words.astype(np.int64) & (2**self.bits - 1)
        half = 2 ** (self.bits - 1)
        values: NDArray[np.int64] = (reduced + half) % (2 * half) - half
        return values


def modulus_for(members: int, bits: int) -> Modulus:
    """Return the smallest modulus that holds the sum of `members` numbers of `bits` bits.

    Raises:
        SecureSumError: none does.
    """
    for modulus in MODULI:
        # The sum of all members never wraps.
        if members * largest_encoded(bits) < 2 ** (modulus - 1):
            return Modulus(modulus)
    raise SecureSumError(f"{members} members of {bits} bits exceed the largest modulus of {MODULI[-1]} bits")


def largest_encoded(bits: int) -> int:
    """Return the largest encoded number, 2^(b-1) - 1."""
    return int(2 ** (bits - 1) - 1)


def clamp_weight(examples: int, weigh_up_to: int | None) -> float:
    """Return w = clamp(n_i / `weigh_up_to`, 1/64, 1), or 1 for uniform weights.

    A smaller weight would disappear in rounding.
    """
    return 1.0 if weigh_up_to is None else min(max(examples / weigh_up_to, LEAST_WEIGHT), 1.0)


def quantise(
    values: NDArray[np.float32], clip: int, bits: int, *, weight: float = 1.0, seed: bytes | None = None
) -> Quantised:
    """Return values (n,) as integers of `bits` bits (n,), rounded stochastically; `clip` in units of 2^-20.

    `seed` has 32 random bytes; by default they are drawn. A value between two integers becomes the upper one
    with a probability of its distance to the lower one.

    Raises:
        SecureSumError: a value is not finite, or the clip is not positive.
    """
    if clip < 1 or not np.isfinite(values).all():
        raise SecureSumError("values are finite, and a clip is at least 2^-20")
    limit = clip * CLIP_UNIT
    scaled = np.clip(values.astype(np.float64) * weight, -limit, limit) * (largest_encoded(bits) / limit)
    # Rounded at random: rounding to the nearest would add up to a bias in the sum.
    lower = np.floor(scaled)
    # A cipher expands 32 random bytes, which is faster than drawing all words from the system.
    drawn = keystream(secrets.token_bytes(32) if seed is None else seed, np.dtype("<u4"), len(values))
    return (lower + (drawn < (scaled - lower) * 2.0**32)).astype(np.int32)


def clipped_share(values: NDArray[np.float32], clip: int, *, weight: float = 1.0) -> float:
    """Return the share of values that the clip changes."""
    return (
        float(np.mean(np.abs(values.astype(np.float64) * weight) > clip * CLIP_UNIT)) if len(values) else 0.0
    )


def require_in_range(total: NDArray[np.int64], members: int, bits: int) -> None:
    """Check that no coordinate of a sum exceeds what `members` honest members can send.

    Raises:
        SumOutOfRange: one does. Who sent it cannot be known.
    """
    if len(total) and int(np.abs(total).max()) > members * largest_encoded(bits):
        raise SumOutOfRange(f"a coordinate exceeds the sum of {members} members: a member spoilt the sum")


def dequantise(total: NDArray[np.int64], clip: int, bits: int) -> NDArray[np.float64]:
    """Return a sum of integers (n,) as the sum of weighted values (n,)."""
    return total.astype(np.float64) * (clip * CLIP_UNIT / largest_encoded(bits))


def concatenate(parts: Sequence[Quantised]) -> Quantised:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
