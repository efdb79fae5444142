"""Say what a strategy of ordinary LoRA may tell beside whom each client listens to. Pure: types alone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class PartTravels(Protocol):
    """A strategy under which some tensors of an adapter never leave the client."""

    def travels(self, tensor: str) -> bool:
        """Say whether a tensor travels; the agent's file of the same name says the same."""


def is_of_lora(strategy: object) -> bool:
    """Say whether a strategy knows what A and B are, so that no other adapter can be used with it."""
    return isinstance(strategy, PartTravels)
