"""Say what a strategy may ask of the rest of a plan, and what it may add to a layout. Pure: types alone."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from schemas.maths.adapter import Layout
from schemas.messages.federations import FederationPlan


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
