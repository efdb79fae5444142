"""An ordinary LoRA beside P and Q, with shared ranks that are sent and private ranks that are not.

Two LoRA side by side are one of the summed rank: B1 A1 + B2 A2 = [B1 B2] [A1; A2]. So the base model carries
one LoRA, whose first ranks are shared and whose last are private; P and Q wrap its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import Adapter, AdapterBase, LoraFactors, State, require_fit, side_by_side
from client_agent.adapters.lora import LoraAdapter, initialize_zero_ranks
from client_agent.errors import AdapterInPlace
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, in_order
from schemas.messages.federations import AdapterPlan

LORA_RATE = 1 / 3
"""Learning rate of LoRA relative to that of P and Q (docs/explanation/training.md)."""

_PRIVATE = "private."
_LORA = "lora."

Arrays = dict[str, NDArray[np.float32]]


class ComposedAdapter(AdapterBase):
    """LoRA of every (layer, role), and P and Q around it for every (block, role) with a frame."""

    def __init__(
        self, base: BaseModel, plan: AdapterPlan, *, seed: int, inject_pq: Callable[[], Adapter] | None
    ) -> None:
        self._shared = plan.same_architecture_rank
        ranks = {"rank": plan.same_architecture_rank + plan.private_rank}
        self._lora = LoraAdapter(base, plan.model_copy(update={"kind": "lora", **ranks}), seed=seed)
        # Holds the A of the seed, which a pair of zeros gets later.
        self._start = self._lora.state()
        try:
            self._pq = inject_pq() if inject_pq is not None else None
        except BaseException:
            self._lora.remove()
            raise
        pq_layout = self._pq.layout if self._pq is not None else {}
        shared = {name: values.shape for name, values in self._split(self._start)[0].items()}
        self.layout: Layout = in_order({**pq_layout, **shared})

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return P, Q, gates, and A, B with shared and private ranks in one tensor: `lora.l0.q.A`."""
        lora = {f"{_LORA}{name}": tensor for name, tensor in self._lora.named_parameters().items()}
        return {**(self._pq.named_parameters() if self._pq is not None else {}), **lora}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return P's and Q's groups unchanged, and LoRA's at LORA_RATE * learning_rate."""
        pq_groups = self._pq.parameter_groups(learning_rate) if self._pq is not None else []
        return [*pq_groups, *self._lora.parameter_groups(learning_rate * LORA_RATE)]

    def state(self) -> Arrays:
        pq_state = self._pq.state() if self._pq is not None else {}
        return _sorted({**pq_state, **self._split(self._lora.state())[0]})

    def load(self, state: State) -> None:
        """Set P, Q and the shared ranks; a shared pair A = B = 0 gets the A drawn from the seed."""
        require_fit(self.layout, state)
        pq_state, shared = self._separate(state)
        if self._pq is not None:
            self._pq.load(pq_state)
        self._set(shared=shared, private=self._split(self._lora.state())[1])

    def load_global(self, state: State) -> None:
        if self._shared:
            raise AdapterInPlace(
                "shared LoRA ranks have no global branch; set same_architecture_rank to 0 to use mix gate"
            )
        if self._pq is not None:
            self._pq.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the gates and the private ranks: `private.l0.q.A` (r, d_in), `.B` (d_out, r)."""
        gates = self._pq.private_state() if self._pq is not None else {}
        private = self._split(self._lora.state())[1]
        return _sorted({**gates, **{f"{_PRIVATE}{name}": values for name, values in private.items()}})

    def load_private(self, state: State) -> None:
        shared, private = self._split(self._lora.state())
        require_fit({name: values.shape for name, values in self.private_state().items()}, state)
        if self._pq is not None:
            self._pq.load_private({n: v for n, v in state.items() if not n.startswith(_PRIVATE)})
        self._set(shared=shared, private={name: state[f"{_PRIVATE}{name}"] for name in private})

    def merged_state(self) -> Arrays:
        merged = self._pq.merged_state() if self._pq is not None else {}
        return _sorted({**merged, **self._split(self._lora.state())[0]})

    def as_lora(self) -> dict[str, LoraFactors]:
        pq = self._pq.as_lora() if self._pq is not None else {}
        lora = self._lora.as_lora()
        return {
            path: side_by_side(factors[path] for factors in (pq, lora) if path in factors)
            for path in sorted(pq.keys() | lora.keys())
        }

    def remove(self) -> None:
        """Restore the original linear layers, in reverse order of injection."""
        if self._pq is not None:
            self._pq.remove()
        self._lora.remove()

    def _separate(self, state: State) -> tuple[State, State]:
        pq_layout = self._pq.layout if self._pq is not None else {}
        return (
            {name: values for name, values in state.items() if name in pq_layout},
            {name: values for name, values in state.items() if name not in pq_layout},
        )

    def _split(self, lora_state: State) -> tuple[Arrays, Arrays]:
        """Split A and B into (shared, private) ranks; a side of rank 0 is empty."""
        shared, private = Arrays(), Arrays()
        for name, values in lora_state.items():
            slices = np.split(values, [self._shared], axis=_rank_axis(name))
            for tensors, ranks in zip((shared, private), slices, strict=True):
                if ranks.size:
                    tensors[name] = np.ascontiguousarray(ranks)
        return shared, private

    def _set(self, *, shared: State, private: State) -> None:
        # Shared and private ranks apart: only the side that is loaded may hold zeros.
        starts = self._split(self._start)
        states = [
            initialize_zero_ranks(state, start)
            for state, start in zip((shared, private), starts, strict=True)
        ]
        self._lora.load(
            {
                name: np.concatenate([state[name] for state in states if state], axis=_rank_axis(name))
                for name in self._start
            }
        )


def _rank_axis(name: str) -> int:
    return 0 if name.endswith(".A") else 1


def _sorted(state: State) -> Arrays:
    return {name: state[name] for name in sorted(state)}
