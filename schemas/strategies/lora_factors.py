"""The options of strategies that know A and B: FedEx-LoRA, FLoRA, LoRA-FAIR and HetLoRA."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.strategies.declaration import StrategyOptions


class FedExLoraOptions(StrategyOptions):
    """The rank of the residual that is served."""

    lora_only: ClassVar[bool] = True
    base_delta: ClassVar[bool] = True
    only_steps: ClassVar[bool] = True

    truncate_rank: Annotated[int, Field(ge=1)] | None = None
    """The largest rank of the residual, as the nearest approximation; null = the exact residual."""


class FloraOptions(StrategyOptions):
    """There are no options."""

    lora_only: ClassVar[bool] = True
    base_delta: ClassVar[bool] = True
    restarts: ClassVar[bool] = True
    only_steps: ClassVar[bool] = True
    least_rank: ClassVar[int] = 1


class LoraFairOptions(StrategyOptions):
    """The size of the correction."""

    lora_only: ClassVar[bool] = True
    only_steps: ClassVar[bool] = True

    ridge: Annotated[float, Field(gt=0)] = 0.01
    """The cost lambda of a large correction, relative to the error that remains."""


class HetLoraOptions(StrategyOptions):
    """The range of ranks, and how clients prune theirs."""

    lora_only: ClassVar[bool] = True

    r_min: Annotated[int, Field(ge=1, le=1024)] = 1
    """The smallest rank of a client; the largest is `adapter.rank`."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """The share of a client's ranks that pruning never touches."""
    pruning: Annotated[float, Field(ge=0)] = 1e-3
    """The strength with which the other ranks are drawn towards zero; they are removed after a round in
    which they shrank.
    """

    @property
    def least_rank(self) -> int:
        return self.r_min
