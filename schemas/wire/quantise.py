"""Quantisation: float32 values as few-bit codes and scales.

Integers are symmetric, one float16 scale per block of values, rounded stochastically without bias (Alistarh
et al., QSGD, arXiv 1610.02132) with random words of the update: packing again produces the same bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.maths.seeded_random import Key, words
from schemas.messages.recipes import Recipe, ValueFormat
from schemas.wire.errors import QuantCode, QuantScale

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Octets = NDArray[np.uint8]

LEVELS: Final[dict[ValueFormat, int]] = {"int8": 127, "int4": 7}
"""The largest code of each integer format; codes are symmetric around 0."""

_BITS: Final[dict[ValueFormat, int]] = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "int4": 4}
_PIECE = 2**16  # values per step: a whole number of blocks and words, sized for the processor's cache
_DRAWS_PER_WORD = 4
_LARGEST_HALF = np.float32(65504)


class NotEncodable(ValueError):
    """A value is not finite, or exceeds the range of the format."""


def code_bytes(count: int, values: ValueFormat) -> int:
    return (count * _BITS[values] + 7) // 8


def scale_count(count: int, recipe: Recipe) -> int:
    return -(-count // recipe.block) if recipe.values in LEVELS else 0


def encode_values(values: Floats, recipe: Recipe, *key: Key) -> tuple[Octets, Halves]:
    """Encode values (n,) as codes and scales; the random words are those of `key`.

    Raises:
        NotEncodable: the format has no code for a value.
    """
    if not np.isfinite(values).all():
        raise NotEncodable("a value is not finite")
    if recipe.values not in LEVELS:
        return _encode_floats(values, recipe.values), np.empty(0, np.float16)
    levels = LEVELS[recipe.values]
    codes = np.empty(code_bytes(values.size, recipe.values), np.uint8)
    scales = np.empty(scale_count(values.size, recipe), np.float16)
    for at in range(0, values.size, _PIECE):
        piece = values[at : at + _PIECE]
        first = at // recipe.block
        block_scales = _scales(piece, recipe.block, levels)
        scales[first : first + block_scales.size] = block_scales
        # From words of the update: packing it again gives the same bytes.
        drawn = _draws(piece.size, at, *key)
        integers = _rounded(piece, np.repeat(block_scales.astype(np.float32), recipe.block), drawn, levels)
        begin = code_bytes(at, recipe.values)
        packed = integers.view(np.uint8) if recipe.values == "int8" else _nibbles(integers)
        codes[begin : begin + packed.size] = packed
    return codes, scales


def decode_values(codes: Octets, scales: Halves, count: int, recipe: Recipe) -> Floats:
    """Decode `count` values (count,) from exactly as many codes and scales as they need.

    Raises:
        QuantScale: a scale is negative, not finite, or 0 with a non-zero code.
        QuantCode: the most negative code, or a last half byte that is not 0.
    """
    if recipe.values not in LEVELS:
        return _decode_floats(codes, recipe.values)
    _check_scales(scales)
    values = np.empty(count, np.float32)
    for at in range(0, count, _PIECE):
        size = min(_PIECE, count - at)
        begin = code_bytes(at, recipe.values)
        raw = codes[begin : begin + code_bytes(size, recipe.values)]
        integers = raw.view(np.int8) if recipe.values == "int8" else _integers(raw, size)
        # Codes are symmetric; the most negative one would be a second form of a clipped value.
        if integers.min() < -LEVELS[recipe.values]:
            raise QuantCode(f"codes must be from {-LEVELS[recipe.values]} to {LEVELS[recipe.values]}")
        first = at // recipe.block
        block_scales = scales[first : first + scale_count(size, recipe)].astype(np.float32)
        spread = np.repeat(block_scales, recipe.block)[:size]
        if not block_scales.all() and integers[spread == 0].any():
            raise QuantScale("a scale is 0 but a code of its block is not")
        np.multiply(integers, spread, out=values[at : at + size])
    return values


def _scales(values: Floats, block: int, levels: int) -> Halves:
    """Return the smallest float16 per block that scales its largest value to at most `levels`."""
    largest = np.maximum.reduceat(np.abs(values), np.arange(0, values.size, block))
    exact = largest / np.float32(levels)
    if (exact > _LARGEST_HALF).any():
        raise NotEncodable(f"a value exceeds {float(_LARGEST_HALF) * levels:g}")
    scales = exact.astype(np.float16)
    # Rounded up: the largest value of a block must not need a larger code.
    below = scales.astype(np.float32) < exact
    scales[below] = np.nextafter(scales[below], np.float16(np.inf))
    return scales


def _draws(count: int, begin: int, *key: Key) -> Floats:
    """Draw from the open interval (0, 1): midpoints of 65,536 equal parts, four per word."""
    drawn = words(-(-count // _DRAWS_PER_WORD), *key, begin=begin // _DRAWS_PER_WORD)
    parts = drawn.astype("<u8").view("<u2")[:count].astype(np.float32)
    return (parts + np.float32(0.5)) * np.float32(2**-16)


def _rounded(values: Floats, spread: Floats, drawn: Floats, levels: int) -> NDArray[np.int8]:
    """Round values / scales stochastically to a neighbouring integer, without bias."""
    units = np.zeros(values.size, np.float32)
    np.divide(values, spread[: values.size], out=units, where=spread[: values.size] > 0)
    units += drawn
    np.floor(units, out=units)
    np.clip(units, -levels, levels, out=units)  # a quotient may be rounded up past `levels`
    return units.astype(np.int8)


def _nibbles(integers: NDArray[np.int8]) -> Octets:
    """Pack two codes per byte, the first in the lower half; an odd last code is paired with 0."""
    raw = np.zeros(integers.size + integers.size % 2, np.uint8)
    raw[: integers.size] = integers.view(np.uint8) & 0x0F
    return np.asarray(raw[0::2] | raw[1::2] << 4, dtype=np.uint8)


def _integers(raw: Octets, count: int) -> NDArray[np.int8]:
    if count % 2 and raw[-1] & 0xF0:
        raise QuantCode("the half byte after the last code is not 0")
    integers = np.empty(2 * raw.size, np.int8)
    signed = raw.view(np.int8)
    integers[0::2] = (signed << 4) >> 4
    integers[1::2] = signed >> 4
    return integers[:count]


def _check_scales(scales: Halves) -> None:
    if not np.isfinite(scales).all():
        raise QuantScale("a scale is not finite")
    if np.signbit(scales).any():
        raise QuantScale("a scale is negative")


def _encode_floats(values: Floats, to: ValueFormat) -> Octets:
    if to == "f32":
        return np.frombuffer(values.astype("<f4").tobytes(), np.uint8)
    if to == "f16":
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        if not np.isfinite(halves).all():
            raise NotEncodable(f"a value exceeds {float(_LARGEST_HALF):g}")
        return np.frombuffer(halves.tobytes(), np.uint8)
    bits = np.ascontiguousarray(values).view(np.uint32)
    upper = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(
        "<u2"
    )  # to nearest, ties even
    if (upper & 0x7F80 == 0x7F80).any():
        raise NotEncodable("a value exceeds the range of bfloat16")
    return np.frombuffer(upper.tobytes(), np.uint8)


def _decode_floats(codes: Octets, form: ValueFormat) -> Floats:
    raw = codes.tobytes()
    if form == "bf16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f4" if form == "f32" else "<f2").astype(np.float32)
