"""Options of strategies that learn the importance of each rank (CA-PFL), and the ranks of an update."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from schemas.messages.base import Strict


class ImportancePlan(BaseModel):
    """Learning the importance of each rank of A and B; more values of important ranks are sent.

    Options of strategy `ca_pfl` on both sides; docs/decisions/0024 explains each.
    """

    density: Annotated[
        float, Field(gt=0, le=1, description="Share of the values of A and B sent after the warm-up.")
    ] = 0.27
    span: Annotated[
        float,
        Field(
            ge=0, le=1, description="Density of the most important rank minus that of the least important."
        ),
    ] = 0.25
    cut: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="Ranks below this importance are not sent, and not trained after two such rounds; "
            "0 = off.",
        ),
    ] = 0.0
    warm_rounds: Annotated[
        int,
        Field(ge=0, le=100_000, description="Warm-up in rounds: density falls from 1, and `alpha_s` rises."),
    ] = 2
    alpha_s: Annotated[
        float,
        Field(ge=0, le=100, description="Weight of the magnitude of B's columns, each on its own scale."),
    ] = 0.01
    alpha_p: Annotated[
        float, Field(gt=0, le=100, description="Weight of the mean KL divergence from posterior to prior.")
    ] = 0.01
    alpha_f: Annotated[
        float, Field(ge=0, le=100, description="Weight of the squared distance to the served weights.")
    ] = 0.1
    variational_rate: Annotated[float, Field(gt=0, le=1, description="Learning rate of the posterior.")] = (
        0.01
    )


class SentRanks(Strict):
    """The number of ranks of an update with a value that is not zero, in `A` or in `B`."""

    sent: int
    """Ranks with values, over all modules."""
    of: int
    """All ranks, over all modules."""
