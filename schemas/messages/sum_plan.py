"""The part of a plan that describes secure sums, in which the coordinator learns sums only."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.messages.base import Strict, field_error
from schemas.messages.training import Count, Positive

Masking = Literal["pairwise", "none"]

# A sum over two members shows each the update of the other.
_LEAST_MASKED = 3

LEAST_GROUP = 3
"""The usual least number of members of a group, and the smallest with masks."""


class SecureSumPlan(Strict):
    """Updates are summed in sessions of five steps (docs/explanation/secure-sum.md)."""

    masking: Masking = "pairwise"
    """`pairwise`: the coordinator sees masked vectors and opens only their sum; `none`: the same sessions
    without masks, so that the coordinator sees every update.
    """
    minimum: Annotated[int, Field(ge=2, le=128)] = 5
    """The smallest number of members of a sum. Agents refuse to take part in a smaller sum."""
    phase_seconds: Annotated[int, Field(ge=1, le=86400)] = 120
    """Seconds that a step waits for members; members that do not answer in time drop out."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """The number of sessions of a round that may fail before the round is abandoned."""
    bits: Literal[8, 16] = 16
    """The number of bits of an encoded value."""
    clip: Positive | None = None
    """The largest change of a value; larger changes are clipped to it. null = `training.steps` times
    `training.learning_rate`, or times 0.03 with `auto`.
    """
    weigh_up_to: Count | None = None
    """The number of examples from which a member has full weight; null = all members weigh the same."""
    k_min: Annotated[int, Field(ge=1, le=128)] = LEAST_GROUP
    """The smallest number of members of a summed group, such as the users of one expert. Agents refuse to
    take part in a sum in which a group may have fewer members.
    """
    scores: Literal["summed", "own"] = "summed"
    """`summed`: the losses of members are part of the sum; `own`: every client sends its scores by name."""
    one_per_organisation: bool = True
    """Whether an organisation has one member in a sum: the first of its clients that is ready."""

    @model_validator(mode="after")
    def _masked_sums_have_members(self) -> Self:
        if self.masking == "pairwise" and self.minimum < _LEAST_MASKED:
            raise field_error(f"must be at least {_LEAST_MASKED} with pairwise masking", "minimum")
        if self.masking == "pairwise" and self.k_min < LEAST_GROUP:
            raise field_error(f"must be at least {LEAST_GROUP} with pairwise masking", "k_min")
        return self
