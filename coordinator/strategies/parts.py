"""The parts of a round's publication that a strategy declares or a plan asks for, in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from coordinator.errors import Invalid
from coordinator.strategies.opening import OpenedPlan


class PartName(StrEnum):
    """A part in addition to weighing, guarding and combining updates; `coordinator.aggregation.parts` has its
    code.
    """

    CHANGES = "changes"
    SUM = "sum"
    BANK = "bank"
    BASE_DELTA = "base delta"
    SERVED_DIFFERENCE = "served difference"
    OUTPUTS = "outputs"


_IS_DECLARED: Mapping[PartName, Callable[[OpenedPlan], bool]] = {
    PartName.CHANGES: lambda opened: opened.traits.compares_changes,
    PartName.SUM: lambda opened: opened.plan.privacy.secure_sum is not None,
    # The bank changes by the sum, and its index is part of the manifests of the new weights.
    PartName.BANK: lambda opened: (
        opened.strategy.bank is not None and opened.plan.privacy.secure_sum is not None
    ),
    PartName.BASE_DELTA: lambda opened: opened.options.base_delta,
    # A sum writes its one model as a difference itself: nothing is written twice.
    PartName.SERVED_DIFFERENCE: lambda opened: (
        opened.plan.wire.served_difference is not None and opened.plan.privacy.secure_sum is None
    ),
    PartName.OUTPUTS: lambda opened: opened.options.distilled_texts is not None,
}
"""In the order in which parts work."""


def declared_parts(opened: OpenedPlan) -> list[PartName]:
    """Return the parts that a strategy declares and those that its plan asks for, in order."""
    return [name for name, is_declared in _IS_DECLARED.items() if is_declared(opened)]


def require_compatible_parts(opened: OpenedPlan) -> None:
    """Raise if two parts of a plan exclude each other.

    Raises:
        Invalid: they do; the message names the field of the plan.
    """
    if {PartName.BASE_DELTA, PartName.SERVED_DIFFERENCE} <= set(declared_parts(opened)):
        raise Invalid(
            f"wire.weights_recipe: {opened.plan.strategy.name} serves changes of the base model, which all "
            "clients of a group add up exactly; leave it out, or use dense",
            field="wire.weights_recipe",
        )
