"""The option of strategies whose clients learn from the outputs of each other's models."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_TEXTS = 4096
"""The largest number of public texts on which outputs are computed."""


class DistilPlan(BaseModel):
    """Distillation on the federation's public anchor texts, across base models and tokenizers.

    An option of strategy `fedmosaic` on both sides; docs/explanation/distillation.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    texts: Annotated[
        int,
        Field(
            ge=1, le=MOST_TEXTS, description="The number of first anchor texts on which outputs are computed."
        ),
    ] = 64
    factor: Annotated[
        float,
        Field(gt=0, le=10, description="The weight of the divergence from the peers' mixture in the loss."),
    ] = 0.1
