"""FedProx (arXiv 1812.06127, MLSys 2020): FedAvg of clients that stay near the weights they are served."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.strategies.averaging import Averaging


@dataclass(frozen=True, slots=True)
class Strategy(Averaging):
    """One mean for all clients, as `fedavg`; the pull is the clients' part."""
