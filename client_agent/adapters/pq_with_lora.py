"""An ordinary LoRA beside P and Q: some of its ranks travel, some never leave the client. Trains nothing.

Two LoRA side by side are one of the summed rank: B1 A1 + B2 A2 = [B1 B2] [A1; A2]. So one LoRA acts, its
first ranks are the shared ones, the others private, and P, Q wrap what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.base import Adapter, LoraFactors, Removable, State, require_fit, side_by_side
from client_agent.adapters.lora import LoraAdapter, revived
from client_agent.errors import AdapterInPlace
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout, in_order
from schemas.messages.federations import AdapterPlan

LORA_RATE = 1 / 3
"""The learning rate of LoRA as a share of that of P, Q, which is about three times as large (fedmosaic.md
section 3, "Beside P and Q")."""

_PRIVATE = "private."
_LORA = "lora."

Arrays = dict[str, NDArray[np.float32]]


class ComposedAdapter(Removable):
    """LoRA of every (layer, role), and around it P and Q of every framed (block, role), if there are any."""

    def __init__(
        self, base: BaseModel, plan: AdapterPlan, *, seed: int, around: Callable[[], Adapter] | None
    ) -> None:
        self._shared = plan.same_architecture_rank
        ranks = {"rank": plan.same_architecture_rank + plan.private_rank}
        self._lora = LoraAdapter(base, plan.model_copy(update={"kind": "lora", **ranks}), seed=seed)
        self._start = self._lora.state()
        try:
            self._pq = around() if around is not None else None
        except BaseException:
            self._lora.remove()
            raise
        own = self._pq.layout if self._pq is not None else {}
        shared = {name: values.shape for name, values in self._split(self._start)[0].items()}
        self.layout: Layout = in_order({**own, **shared})

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Give every P, Q and gate, and every A and B with shared and private ranks in one: `lora.l0.q.A`."""
        lora = {f"{_LORA}{name}": tensor for name, tensor in self._lora.named_parameters().items()}
        return {**(self._pq.named_parameters() if self._pq is not None else {}), **lora}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Let P, Q train as they do alone, and LoRA at LORA_RATE of the learning rate."""
        own = self._pq.parameter_groups(learning_rate) if self._pq is not None else []
        return [*own, *self._lora.parameter_groups(learning_rate * LORA_RATE)]

    def state(self) -> Arrays:
        """Copy P, Q and the shared ranks of A and B."""
        own = self._pq.state() if self._pq is not None else {}
        return _sorted({**own, **self._split(self._lora.state())[0]})

    def load(self, state: State) -> None:
        """Set P, Q and the shared ranks of A and B; a shared pair that is zero gets the A of the start."""
        require_fit(self.layout, state)
        own, shared = self._parted(state)
        if self._pq is not None:
            self._pq.load(own)
        self._set(shared=shared, private=self._split(self._lora.state())[1])

    def load_global(self, state: State) -> None:
        """Set the frozen global P and Q beside the local ones; shared LoRA ranks have no global branch."""
        if self._shared:
            raise AdapterInPlace("shared LoRA ranks have no global branch; use mix gate without them")
        if self._pq is not None:
            self._pq.load_global(state)

    def private_state(self) -> Arrays:
        """Copy the gates, and the private ranks: `private.l0.q.A` (r, d_in), `.B` (d_out, r)."""
        own = self._pq.private_state() if self._pq is not None else {}
        private = self._split(self._lora.state())[1]
        return _sorted({**own, **{f"{_PRIVATE}{name}": values for name, values in private.items()}})

    def load_private(self, state: State) -> None:
        """Set the gates and the private ranks."""
        shared, private = self._split(self._lora.state())
        require_fit({name: values.shape for name, values in self.private_state().items()}, state)
        if self._pq is not None:
            self._pq.load_private({n: v for n, v in state.items() if not n.startswith(_PRIVATE)})
        self._set(shared=shared, private={name: state[f"{_PRIVATE}{name}"] for name in private})

    def merged_state(self) -> Arrays:
        """Give P and Q as they act, and the shared ranks."""
        own = self._pq.merged_state() if self._pq is not None else {}
        return _sorted({**own, **self._split(self._lora.state())[0]})

    def as_lora(self) -> dict[str, LoraFactors]:
        """Give everything that is added to a module as one LoRA of the summed rank."""
        own = self._pq.as_lora() if self._pq is not None else {}
        lora = self._lora.as_lora()
        return {
            path: side_by_side(factors[path] for factors in (own, lora) if path in factors)
            for path in sorted(own.keys() | lora.keys())
        }

    def remove(self) -> None:
        """Put the original linear layers back: what was injected last goes first."""
        if self._pq is not None:
            self._pq.remove()
        self._lora.remove()

    def _parted(self, state: State) -> tuple[State, State]:
        own = self._pq.layout if self._pq is not None else {}
        return (
            {name: values for name, values in state.items() if name in own},
            {name: values for name, values in state.items() if name not in own},
        )

    def _split(self, whole: State) -> tuple[Arrays, Arrays]:
        """Part A and B into shared ranks and private ones; a part without any rank is empty."""
        first, rest = Arrays(), Arrays()
        for name, values in whole.items():
            parts = np.split(values, [self._shared], axis=_rank_axis(name))
            for found, part in zip((first, rest), parts, strict=True):
                if part.size:
                    found[name] = np.ascontiguousarray(part)
        return first, rest

    def _set(self, *, shared: State, private: State) -> None:
        starts = self._split(self._start)
        parts = [revived(state, start) for state, start in zip((shared, private), starts, strict=True)]
        self._lora.load(
            {
                name: np.concatenate([part[name] for part in parts if part], axis=_rank_axis(name))
                for name in self._start
            }
        )


def _rank_axis(name: str) -> int:
    return 0 if name.endswith(".A") else 1


def _sorted(state: State) -> Arrays:
    return {name: state[name] for name in sorted(state)}
