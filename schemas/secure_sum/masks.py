"""Masks: the keystream of AES-256 in counter mode as words, added modulo 2^m.

Masks of pairs cancel: the member with the lower position adds the mask, the other one subtracts it. Every one
of the 256 bits of a key changes its mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from schemas.secure_sum.curve import ORDER, wide_scalar

Words = NDArray[np.unsignedinteger]

_SCALAR_BYTES = 64
# Words per step: zeros, keystream and sum of a step stay in the processor's cache.
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class MaskKey:
    """The 32-byte key of a mask, and whether the mask is subtracted."""

    key: bytes
    is_subtracted: bool


def keystream(key: bytes, word: np.dtype[np.unsignedinteger], count: int) -> Words:
    """Return the first `count` little-endian words (count,) of AES-256-CTR under a key of 32 bytes."""
    return np.frombuffer(_encryptor(key).update(bytes(count * word.itemsize)), word)


def blindings(masks: Iterable[MaskKey], count: int) -> list[int]:
    """Return the sum of masks as `count` scalars: 64 bytes of each keystream per scalar.

    A session masks either words or blindings: no part of a keystream is used twice.
    """
    totals = [0] * count
    for mask in masks:
        stream = _encryptor(mask.key).update(bytes(count * _SCALAR_BYTES))
        for place in range(count):
            drawn = wide_scalar(stream[place * _SCALAR_BYTES : (place + 1) * _SCALAR_BYTES])
            totals[place] += -drawn if mask.is_subtracted else drawn
    return [total % ORDER for total in totals]


class Masks:
    """Masks of one vector, added to it part by part, from its first word on."""

    def __init__(self, keys: Iterable[MaskKey], word: np.dtype[np.unsignedinteger]) -> None:
        self._streams = [(_encryptor(mask.key), mask.is_subtracted) for mask in keys]
        self._word = word
        self._zeros = bytes(_BLOCK * word.itemsize)
        self._drawn = bytearray(len(self._zeros) + 15)  # `update_into` requires room for another block

    def add_to(self, words: Words) -> None:
        """Add all masks to the next words (n,) of the vector in place, modulo the word."""
        # Block by block for all masks, so that a block stays in the processor's cache.
        for begin in range(0, len(words), _BLOCK):
            part = words[begin : begin + _BLOCK]
            for stream, is_subtracted in self._streams:
                mask = self._next(stream, len(part))
                if is_subtracted:
                    np.subtract(part, mask, out=part)
                else:
                    np.add(part, mask, out=part)

    def _next(self, stream: CipherContext, count: int) -> Words:
        stream.update_into(memoryview(self._zeros)[: count * self._word.itemsize], self._drawn)
        return np.frombuffer(self._drawn, self._word, count)


def _encryptor(key: bytes) -> CipherContext:
    # The counter begins at 0, since each key is used for one mask only.
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
