"""An ordinary LoRA of which one factor travels, and the other stays with the client. Trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import LoraFactors, Removable, State, require_fit
from client_agent.adapters.lora import LoraAdapter
from schemas.maths.adapter import Layout

_PRIVATE = "private."

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Parts:
    """Which tensors of an adapter travel, and which train, by name."""

    travels: Callable[[str], bool]
    trains: Callable[[str], bool]


class PartLora(Removable):
    """A LoRA around a base model: what does not travel is private, frozen or not, and kept as such."""

    def __init__(self, lora: LoraAdapter, parts: Parts) -> None:
        self._lora = lora
        self._parts = parts
        self.layout: Layout = {name: shape for name, shape in lora.layout.items() if parts.travels(name)}
        for name, tensor in lora.named_parameters().items():
            tensor.requires_grad_(parts.trains(name))

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Give every A and B that trains."""
        return {
            name: tensor for name, tensor in self._lora.named_parameters().items() if self._parts.trains(name)
        }

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Give one group: all that train do so at `learning_rate`."""
        return [{"params": list(self.named_parameters().values()), "lr": learning_rate}]

    def state(self) -> Arrays:
        """Copy what travels."""
        return {name: values for name, values in self._lora.state().items() if name in self.layout}

    def load(self, state: State) -> None:
        """Set what travels; a pair A, B that is zero altogether gets the A of the start."""
        require_fit(self.layout, state)
        self._lora.load({**self._lora.state(), **state})

    def load_global(self, state: State) -> None:
        """Refuse, as ordinary LoRA does."""
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy what stays: `private.l0.q.A` (r, d_in), `.B` (d_out, r)."""
        whole = self._lora.state()
        return {f"{_PRIVATE}{name}": values for name, values in whole.items() if name not in self.layout}

    def load_private(self, state: State) -> None:
        """Set what stays."""
        require_fit({name: values.shape for name, values in self.private_state().items()}, state)
        own = {name.removeprefix(_PRIVATE): values for name, values in state.items()}
        self._lora.load({**self._lora.state(), **own})

    def merged_state(self) -> Arrays:
        """Give what travels: there is one branch."""
        return self.state()

    def as_lora(self) -> dict[str, LoraFactors]:
        """Give A and scale * B of every module, whoever's they are."""
        return self._lora.as_lora()

    def remove(self) -> None:
        """Put the original linear layers back."""
        self._lora.remove()
