"""Clients that send, or train, only one of the two factors of an ordinary LoRA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from client_agent.rounds.part import Part

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter
    from client_agent.adapters.lora import LoraAdapter
    from client_agent.model.loading import BaseModel


@dataclass(frozen=True, slots=True)
class SentFactors(Part):
    """Predicates over tensor names: which are sent to the coordinator, and which are trained."""

    action = "sends a part of the adapter"
    excludes = frozenset({"a PEFT trainer"})

    travels: Callable[[str], bool]
    trains: Callable[[str], bool]

    def wrap(self, adapter: Adapter, base: BaseModel) -> Adapter:
        from client_agent.adapters.partial_lora import PartialLora

        return PartialLora(cast("LoraAdapter", adapter), self.travels, self.trains)
