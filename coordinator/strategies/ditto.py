"""Ditto (arXiv 2012.04221, ICML 2021): FedAvg, and beside it each client trains an adapter of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from coordinator.strategies import averaging
from coordinator.strategies.capabilities import Traits


class Options(averaging.Options):
    """The strength with which each client's own adapter is pulled to the common one."""

    pull: Annotated[float, Field(ge=0)] = 0.1
    """The weight lambda of |v - w|^2 / 2 in the loss of a client's own adapter v, with w the adapter that it
    was served in this round; 0 trains alone.
    """


@dataclass(frozen=True, slots=True)
class Strategy(averaging.Averaging):
    """One mean for all clients; what they train of their own never travels."""

    traits: ClassVar[Traits] = Traits(lora_only=True, sums=True)

    options: Options
