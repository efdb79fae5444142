"""FedAvg (McMahan et al. 2017): every client gets the mean of all updates, weighted by examples."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.strategies.averaging import Averaging


@dataclass(frozen=True, slots=True)
class Strategy(Averaging):
    """One mean for all clients that share a (block, role); absent clients decay as planned."""
