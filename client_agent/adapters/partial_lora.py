"""An ordinary LoRA of which some factors are sent and the remaining ones stay with the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import AdapterBase, LoraFactors, State, require_fit
from client_agent.adapters.lora import LoraAdapter
from schemas.maths.adapter import Layout

_PRIVATE = "private."

Arrays = dict[str, NDArray[np.float32]]


class PartialLora(AdapterBase):
    """A LoRA whose private tensors are those that are not sent, trained or not."""

    def __init__(
        self, lora: LoraAdapter, travels: Callable[[str], bool], trains: Callable[[str], bool]
    ) -> None:
        self._lora = lora
        self._trains = trains
        self.layout: Layout = {name: shape for name, shape in lora.layout.items() if travels(name)}
        for name, tensor in lora.named_parameters().items():
            # Without gradients for frozen factors, whose memory they would need.
            tensor.requires_grad_(trains(name))

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {name: tensor for name, tensor in self._lora.named_parameters().items() if self._trains(name)}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.named_parameters().values()), "lr": learning_rate}]

    def state(self) -> Arrays:
        return {name: values for name, values in self._lora.state().items() if name in self.layout}

    def load(self, state: State) -> None:
        """Set the tensors that are sent; a pair A = B = 0 is initialised with the A drawn from the seed."""
        require_fit(self.layout, state)
        self._lora.load({**self._lora.state(), **state})

    def load_global(self, state: State) -> None:
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the tensors that are not sent: `private.l0.q.A` (r, d_in), `.B` (d_out, r)."""
        tensors = self._lora.state()
        return {f"{_PRIVATE}{name}": values for name, values in tensors.items() if name not in self.layout}

    def load_private(self, state: State) -> None:
        require_fit({name: values.shape for name, values in self.private_state().items()}, state)
        private = {name.removeprefix(_PRIVATE): values for name, values in state.items()}
        self._lora.load({**self._lora.state(), **private})

    def merged_state(self) -> Arrays:
        return self.state()

    def as_lora(self) -> dict[str, LoraFactors]:
        return self._lora.as_lora()

    def remove(self) -> None:
        self._lora.remove()
