"""The parts of a round that fields of the plan ask for, beside those of its strategy. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import cast

from client_agent.errors import PlanUnusable
from client_agent.rounds.part import Part
from schemas.messages.alignment import Anchor
from schemas.messages.federations import TrainingPlan


def with_planned(
    parts: Sequence[Part], training: TrainingPlan, texts: Sequence[Anchor] = ()
) -> tuple[Part, ...]:
    """Return the parts of a strategy, and those that the plan of training adds.

    Args:
        texts: public texts of a training without a federation.

    Raises:
        PlanUnusable: a part of the strategy runs steps without the loss of the others.
    """
    if not training.anchor_pull:
        return tuple(parts)
    if (unfit := next((part for part in parts if not part.adds_losses), None)) is not None:
        raise PlanUnusable(
            f"training.anchor_pull adds to the loss of each step, and the plan's method {unfit.action}, in "
            "steps that take no further loss; ask for a plan with anchor_pull 0, or with another strategy"
        )
    # By name, as strategies are found: features lie above the steps of a round.
    module = import_module("client_agent.anchor_pull.part")
    return (*parts, cast(Part, module.AnchorPull(training.anchor_pull, tuple(texts))))
