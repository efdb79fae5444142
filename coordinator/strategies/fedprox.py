"""FedProx (arXiv 1812.06127, MLSys 2020): FedAvg of clients that stay near the weights they are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from coordinator.strategies import averaging
from coordinator.strategies.capabilities import Traits


class Options(averaging.Options):
    """The strength with which each client stays near the weights that it is served."""

    proximal: Annotated[float, Field(ge=0)] = 0.1
    """The weight mu of |v - w|^2 / 2 in the loss of a client's adapter v, with w the adapter that it was
    served in this round; 0 is `fedavg`.
    """


@dataclass(frozen=True, slots=True)
class Strategy(averaging.Averaging):
    """One mean for all clients, as `fedavg`; the pull is the clients' part."""

    traits: ClassVar[Traits] = Traits(sums=True, only_steps=True)

    options: Options
