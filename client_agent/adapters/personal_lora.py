"""A LoRA of the client's own in the model, and a common one beside it that is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import Adapter, AdapterBase, LoraFactors, Penalty, State, require_fit
from client_agent.adapters.proximal import pull_to
from schemas.maths.adapter import Layout

_PRIVATE = "private."

Arrays = dict[str, NDArray[np.float32]]


class PersonalLora(AdapterBase):
    """A LoRA whose private tensors are the client's own adapter, which is scored, exported and generates.

    `state` and `load` are about the common adapter. Loading it also sets the client's own, which begins with
    it; `load_private` comes afterwards.
    """

    is_sent = False

    def __init__(self, lora: Adapter, pull: float) -> None:
        self._lora = lora
        self._pull = pull
        self.layout: Layout = dict(lora.layout)
        self._common = lora.state()

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return self._lora.named_parameters()

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return self._lora.parameter_groups(learning_rate)

    def state(self) -> Arrays:
        return {name: values.copy() for name, values in self._common.items()}

    def load(self, state: State) -> None:
        """Set both adapters; a rank with A = B = 0 is initialised with the A drawn from the seed."""
        self._lora.load(state)
        self._common = self._lora.state()

    def load_global(self, state: State) -> None:
        self._lora.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the client's own adapter: `private.l0.q.A` (r, d_in), `.B` (d_out, r)."""
        return {f"{_PRIVATE}{name}": values for name, values in self._lora.state().items()}

    def load_private(self, state: State) -> None:
        require_fit({f"{_PRIVATE}{name}": shape for name, shape in self.layout.items()}, state)
        self._lora.load({name.removeprefix(_PRIVATE): values for name, values in state.items()})

    def merged_state(self) -> Arrays:
        return self._lora.merged_state()

    def as_lora(self) -> dict[str, LoraFactors]:
        return self._lora.as_lora()

    def remove(self) -> None:
        self._lora.remove()

    @contextmanager
    def common_in_model(self) -> Iterator[None]:
        """Put the common adapter into the model in place of the client's own, and store it on exit.

        Inside the block the common adapter is trained. After an error its earlier values remain.
        """
        personal = self._lora.state()
        try:
            self._lora.load(self._common)
            yield
            self._common = self._lora.state()
        finally:
            # Also after an error: the client's own adapter is scored and generates text.
            self._lora.load(personal)

    def pull_to_common(self) -> Penalty | None:
        """Return pull / 2 |v - w|^2 with w the common adapter as it is now; None without a pull."""
        return pull_to(self._common, self._pull)
