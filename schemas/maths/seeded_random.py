"""Seeded random numbers, identical on every machine: frames, targets, sketches, orders of examples.

Only raw words of a counter-based generator and integer arithmetic: the distributions of numerical libraries
may change between versions.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
from numpy.typing import NDArray

Key = int | str

_WORDS_PER_BLOCK = 4  # Philox4x64: its counter counts blocks of so many words


def stream(*key: Key) -> np.random.Philox:
    """Return the generator of 64-bit words for `key`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little"))


def words(count: int, *key: Key, begin: int = 0) -> NDArray[np.uint64]:
    """Return `count` words of the stream of `key`, from word `begin` on: (count,) uint64."""
    opened = stream(*key)
    blocks, before = divmod(begin, _WORDS_PER_BLOCK)
    # The generator counts, so that skipped words need not be drawn.
    opened.advance(blocks)
    return np.asarray(opened.random_raw(before + count), dtype=np.uint64)[before:]


def signs(shape: tuple[int, ...], *key: Key) -> NDArray[np.float32]:
    """Draw +1 and -1 with equal probability: `shape` float32."""
    bits = words(prod(shape), *key) >> np.uint64(63)
    return (bits.astype(np.float32) * 2 - 1).reshape(shape)


def uniform(shape: tuple[int, ...], bound: float, *key: Key, begin: int = 0) -> NDArray[np.float32]:
    """Draw uniformly from [-bound, bound): `shape` float32, after skipping `begin` values of the stream."""
    # 53 bits are what a float64 represents exactly.
    unit = (words(prod(shape), *key, begin=begin) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((unit * 2 - 1) * bound).astype(np.float32).reshape(shape)


def below(limit: int, count: int, *key: Key) -> list[int]:
    return [int(word) for word in words(count, *key) % np.uint64(limit)]


def permutation(count: int, *key: Key) -> list[int]:
    return [int(i) for i in np.argsort(words(count, *key), kind="stable")]
