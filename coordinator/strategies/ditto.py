"""Ditto (arXiv 2012.04221, ICML 2021): FedAvg, and beside it each client trains an adapter of its own."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.strategies.averaging import Averaging


@dataclass(frozen=True, slots=True)
class Strategy(Averaging):
    """One mean for all clients; what they train of their own never travels."""
