"""Weights as the difference to those served before: both sides reconstruct the same values, to the bit.

The writer encodes against values that the reader has, so that what rounding lost in one round is in the next
difference, and errors do not add up. There is no residual beside it: it would count the loss twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from schemas.maths.adapter import Layout
from schemas.maths.seeded_random import Key
from schemas.messages.recipes import Recipe
from schemas.wire.quantise import Floats, NotEncodable
from schemas.wire.streams import CodedStreams, Stream, Streams, decode, encode, joined


class DifferenceWriter:
    """Encode tensors one at a time, in name order; equal tensors, references and key make equal streams."""

    def __init__(self, recipe: Recipe, *key: Key) -> None:
        self._recipe = recipe
        self._key = key
        self._parts: dict[str, list[Stream]] = {}

    def add(self, name: str, values: Floats, reference: Floats) -> Floats:
        """Encode a tensor, and return the values that `reconstructed` yields for it, in the same shape.

        Raises:
            NotEncodable: a value is not finite, or too far from its reference.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            coded = encode({name: values - reference}, self._recipe, *self._key)
            # Decoded again: the published values are those that readers compute.
            ((_, difference),) = decode(coded, {name: values.shape}, self._recipe)
            rounded = reference + difference
        if not np.isfinite(rounded).all():
            raise NotEncodable("a value is not finite")
        for stream, part in coded.tensors.items():
            self._parts.setdefault(stream, []).append(part)
        return rounded

    def streams(self) -> CodedStreams:
        """Return the streams of all tensors so far."""
        return joined(self._parts)


def reconstructed(
    streams: Streams, layout: Layout, recipe: Recipe, reference: Callable[[str], Floats]
) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor of a layout: its reference plus the decoded difference.

    Some errors are raised only at the end, so the tensors are not valid before the iterator is exhausted.

    Raises:
        BodyRefused: the streams are not of this layout and recipe, or a value is not finite.
    """
    for name, difference in decode(streams, layout, recipe):
        yield name, reference(name) + difference
