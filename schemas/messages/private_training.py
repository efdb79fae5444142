"""The part of a plan that makes training differentially private."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from schemas.messages.base import Strict
from schemas.messages.training import Count, Positive

CAPABILITY: Final = "private-training-1"
"""What the profile of an agent names that can train under `privacy.training`."""

Gradients = Literal["exact", "batched"]


class PrivateTrainingPlan(Strict):
    """(epsilon, delta)-differential privacy of every training example, against any reader of the updates."""

    epsilon: Annotated[float, Field(ge=0.01, le=10)]
    """The privacy budget of all training of a client together."""
    delta: Annotated[float, Field(ge=1e-8, le=1e-2)] = 1e-5
    """The probability with which the guarantee of epsilon may fail."""
    clip: Positive = 1.0
    """The largest L2 norm of one example's gradient, over all trained tensors."""
    steps: Count | None = None
    """Over how many steps the budget is divided; null = those of all rounds and of one more, for steps that
    are repeated after a crash or in place of an abandoned round. A client whose steps are spent trains no
    more.
    """
    gradients: Gradients = "exact"
    """How gradients of examples are computed: `exact`, each by passes of its own, or `batched`, several at
    once, which is faster. The guarantee of `batched` assumes that on each client's machine the examples of a
    batch do not change the bits of each other's gradients. The agent compares them before each round, and
    computes exact gradients where they differ.
    """
