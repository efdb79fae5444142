"""The options of CA-PFL, corrected: the importance of each rank, learnt by clients (docs/decisions/0024)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.maths.adapter import Layout, prior_layout
from schemas.strategies.declaration import StrategyOptions


class CaPflOptions(StrategyOptions):
    """How clients learn importance and select the values to send; the coordinator does not use them."""

    removed: ClassVar[frozenset[str]] = frozenset({"cut"})

    density: Annotated[float, Field(gt=0, le=1)] = 0.27
    """Share of the values of A and B sent after the warm-up."""
    span: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Density of the most important rank minus that of the least important."""
    warm_rounds: Annotated[int, Field(ge=0, le=100_000)] = 2
    """Warm-up in rounds: density falls from 1, and `alpha_s` rises."""
    alpha_s: Annotated[float, Field(ge=0, le=100)] = 0.01
    """Weight of the magnitude of B's columns, each on its own scale."""
    alpha_p: Annotated[float, Field(gt=0, le=100)] = 0.01
    """Weight of the mean KL divergence from posterior to prior."""
    alpha_f: Annotated[float, Field(ge=0, le=100)] = 0.1
    """Weight of the squared distance to the served weights."""
    variational_rate: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Learning rate of the posterior."""

    def beside(self, layout: Layout) -> Layout:
        return prior_layout(layout)
