"""What a strategy declares: how factors combine, what travels, which plans suit it. Pure: types alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from schemas.maths.adapter import Layout
from schemas.maths.factors import Factors
from schemas.messages.federations import FederationPlan


@dataclass(frozen=True, slots=True)
class Source:
    """What one client brings into a module: its factors, their weight, and how many rounds old they are.

    The weights of all sources sum to 1.
    """

    factors: Factors
    weight: float
    age: int = 0


@runtime_checkable
class PartTravels(Protocol):
    """A strategy under which some tensors of an adapter never leave the client."""

    def travels(self, tensor: str) -> bool:
        """Say whether a tensor travels; the agent's file of the same name says the same."""


@runtime_checkable
class Combining(Protocol):
    """A strategy that serves something else than the weighted mean of A and of B."""

    def combine(self, sources: Sequence[Source]) -> Factors:
        """Make A and B of one module from those whom a client listens to, one at least; pure."""


@runtime_checkable
class Rescaling(Protocol):
    """A strategy that combines with other shares than the weights of its sources."""

    def strength(self, factors: Factors) -> float:
        """Return by what a source's weight is multiplied before all are divided by their sum."""


@runtime_checkable
class RanksDiffer(Protocol):
    """A strategy under which clients of one base model may have adapters of different ranks."""

    @property
    def least_rank(self) -> int:
        """The fewest ranks of an adapter; the most are the plan's `adapter.rank`."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a round does to one module.

    Attributes:
        served: the A and B from which clients go on; None = each begins anew, B = 0.
        residual: what every client adds to the base model for good, times `adapter.scale`.
    """

    served: Factors | None
    residual: Factors


@runtime_checkable
class Folding(Protocol):
    """A strategy under which part of what was learnt goes into the base model, which is frozen otherwise."""

    def fold(self, sources: Sequence[Source]) -> Folded:
        """Make one module of those whom its clients listen to, one at least; pure."""


def is_of_lora(strategy: object) -> bool:
    """Say whether a strategy knows what A and B are, so that no other adapter can be used with it."""
    return isinstance(strategy, PartTravels | Combining | Folding | RanksDiffer)


@runtime_checkable
class MoreTravels(Protocol):
    """A strategy under which more travels than the tensors of an adapter."""

    def beside(self, layout: Layout) -> Layout:
        """Lay out what travels beside an adapter's tensors; the agent's adapter has the same."""


class Unfit(NamedTuple):
    """Which field of a plan a strategy cannot work with, and what it would have to be."""

    field: str
    fact: str


@runtime_checkable
class Particular(Protocol):
    """A strategy that does not work with every plan."""

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        """Say what of the rest of a plan does not do; None = nothing."""
