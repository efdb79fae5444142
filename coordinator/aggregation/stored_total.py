"""The total of a round's sum, decoded block by block."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from coordinator.aggregation.payload_values import PayloadValues
from coordinator.db.engine import Database
from coordinator.secure_sum.totals import SummedTotal
from coordinator.totals import Floats
from schemas.messages.secure_sum import Segment
from schemas.secure_sum.encoding import dequantise
from schemas.secure_sum.segments import SCORES, SUMMED_SCORES, WEIGHT


class StoredTotal:
    """The stored sum of the inputs of `count` members (`coordinator.totals.Total`)."""

    def __init__(self, database: Database, stored: SummedTotal) -> None:
        self._bits = stored.terms.bits
        self._count = len(stored.counted)
        self._segments: dict[str, tuple[Segment, int, PayloadValues]] = {}
        at = 0
        for segment in stored.terms.segments:
            values = PayloadValues(database, stored.payload_id, "<i4", stored.terms.values)
            self._segments[segment.name] = segment, at, values
            at += segment.values

    @property
    def count(self) -> int:
        return self._count

    @property
    def segments(self) -> Collection[str]:
        return self._segments

    def number(self, name: str) -> float:
        """Return a summed scalar; `weight` is `count` if members have uniform weights.

        Raises:
            KeyError: no such number was summed.
            LookupError: the total was deleted by retention.
        """
        if name == WEIGHT and name not in self._segments:
            return float(self._count)
        segment, _, _ = self._segments[name]
        if segment.values != 1:
            raise KeyError(name)
        return float(self.values(name, 0, 1)[0])

    def values(self, segment: str, begin: int, count: int) -> Floats:
        """Return `count` summed values of a segment from `begin` on, (count,).

        Raises:
            KeyError: no such segment was summed.
            LookupError: it has fewer values, or the total was deleted by retention.
        """
        summed, at, stored = self._segments[segment]
        if begin < 0 or begin + count > summed.values:
            raise LookupError(f"segment {segment} has no values {begin} to {begin + count}")
        return dequantise(stored.read(at + begin, count).astype(np.int64), summed.clip, self._bits)

    def mean_losses(self) -> dict[str, float]:
        """Return the mean loss of the members by model, `served` and `trained`; {} if none were summed."""
        if SCORES not in self._segments:
            return {}
        sums = self.values(SCORES, 0, len(SUMMED_SCORES))
        # Each rounded at random: the mean of losses of 0 may be slightly below it.
        return {
            name: max(0.0, float(value) / self._count)
            for name, value in zip(SUMMED_SCORES, sums, strict=True)
        }
