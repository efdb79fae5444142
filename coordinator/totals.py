"""The interface of strategies where the coordinator knows sums only. Pure.

A `SumStrategy` changes the one model that all clients have in common, by the sum of what clients learnt. It
never sees a client, an update or a session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Total(Protocol):
    """The sum of the inputs of `count` members; a segment is a run of summed values with a name."""

    @property
    def count(self) -> int:
        """The number of members that were summed."""

    @property
    def segments(self) -> Collection[str]:
        """The names of the summed segments; those of a group are absent if it had too few members."""

    def number(self, name: str) -> float:
        """Return a summed scalar; `weight` is the sum of the members' weights, `count` if they are uniform.

        Raises:
            KeyError: no such number was summed.
        """

    def values(self, segment: str, begin: int, count: int) -> Floats:
        """Return sum w_i x_i for `count` values of a segment from `begin` on, (count,).

        x_i is what member i learnt: its trained values minus those that all members began with.
        """


@dataclass(frozen=True, slots=True)
class Outline:
    """The names of the joint model's segments, known before anything is summed."""

    segments: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """The outcome of a round's counts: of `members`, how many belong to each group."""

    members: int
    groups: Mapping[str, int]


class JointValues(Protocol):
    """The model that all clients began the round with."""

    @property
    def segments(self) -> Sequence[str]:
        """The names of its segments, one for each factor of the adapter."""

    def read(self, segment: str, begin: int, count: int) -> Floats:
        """Return `count` values of a segment from `begin` on, (count,), with the start in place of zeros."""


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """New values of a segment: `values(begin, count)` returns them, (count,), when the engine writes them."""

    segment: str
    values: Callable[[int, int], Floats]


class SumStrategy(Protocol):
    """A strategy that needs sums only.

    One whose segments belong to groups, such as the users of an expert, has its members counted first: each
    sends 0 or 1 per group, and a group with fewer than `k_min` members is not summed.
    """

    def groups(self, outline: Outline, counted: GroupCounts) -> Collection[str]:
        """Return the counted groups that the sum is to have, if they have enough members."""

    def step(self, joint: JointValues, total: Total) -> Iterator[SegmentChange]:
        """Yield the segments that a round changes, each once; the others stay as they are."""
