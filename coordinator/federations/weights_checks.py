"""Resolve the recipe in which weights are published, by what a strategy serves. Pure."""

from __future__ import annotations

from coordinator.errors import Invalid
from coordinator.strategies.opening import OpenedPlan


def check_weights(opened: OpenedPlan) -> None:
    """Raise if a plan asks for differences that a strategy cannot publish.

    Raises:
        Invalid: the strategy changes the base model, by deltas that are summed exactly.
    """
    if opened.plan.wire.served_difference is not None and opened.traits.base_delta:
        raise Invalid(
            f"wire.weights_recipe: {opened.plan.strategy.name} serves changes of the base model, which all "
            "clients of a group add up exactly; leave it out, or use dense",
            field="wire.weights_recipe",
        )
