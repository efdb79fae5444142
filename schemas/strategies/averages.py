"""The options of strategies that serve one mean: FedAvg, FedProx, Ditto, FedSA-LoRA and FFA-LoRA."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.maths.adapter import factor_of
from schemas.strategies.declaration import StrategyOptions

Aggregate = Literal["mean", "median", "trimmed_mean"]


class AveragingOptions(StrategyOptions):
    """How updates are combined."""

    aggregate: Aggregate = "mean"
    """How the values of clients are combined: by `mean`, or value by value by `median` or `trimmed_mean`, for
    which all clients count equally.
    """


class FedAvgOptions(AveragingOptions):
    """How updates are combined."""

    only_steps: ClassVar[bool] = True


class FedProxOptions(AveragingOptions):
    """The strength with which each client stays near the weights that it is served."""

    only_steps: ClassVar[bool] = True

    proximal: Annotated[float, Field(ge=0)] = 0.1
    """The weight mu of |v - w|^2 / 2 in the loss of a client's adapter v, with w the adapter that it was
    served in this round; 0 is `fedavg`.
    """


class DittoOptions(AveragingOptions):
    """The strength with which each client's own adapter is pulled to the common one."""

    lora_only: ClassVar[bool] = True

    pull: Annotated[float, Field(ge=0)] = 0.1
    """The weight lambda of |v - w|^2 / 2 in the loss of a client's own adapter v, with w the adapter that it
    was served in this round; 0 trains alone.
    """


class FedSaLoraOptions(AveragingOptions):
    """How updates are combined."""

    lora_only: ClassVar[bool] = True
    only_steps: ClassVar[bool] = True

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "A"


class FfaLoraOptions(AveragingOptions):
    """How updates are combined."""

    lora_only: ClassVar[bool] = True
    only_steps: ClassVar[bool] = True

    def travels(self, tensor: str) -> bool:
        return factor_of(tensor) == "B"
