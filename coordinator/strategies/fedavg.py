"""FedAvg (McMahan et al. 2017): every client gets the mean of all updates, weighted by examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.strategies import averaging
from coordinator.strategies.capabilities import Traits


class Options(averaging.Options):
    """How updates are combined."""


@dataclass(frozen=True, slots=True)
class Strategy(averaging.Averaging):
    """One mean for all clients that share a (block, role); absent clients decay as planned."""

    traits: ClassVar[Traits] = Traits(sums=True, only_steps=True)

    options: Options
