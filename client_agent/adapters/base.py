"""Say what training, scoring and rounds may ask of an adapter, whatever kind it is; and swap modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.layers import FoldedLinear, FusedLora, PQLinear
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout
from schemas.maths.factors import Factors

State = Mapping[str, NDArray[np.float32]]
Penalty = Callable[[Mapping[str, nn.Parameter]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """What an adapter adds to one linear layer W, as an ordinary LoRA: W x + B A x + bias; float32.

    A is (r, d_in), B is (d_out, r) with every scale in it, bias is (d_out,) or nothing.
    """

    A: NDArray[np.float32]
    B: NDArray[np.float32]
    bias: NDArray[np.float32] | None


class Adapter(Protocol):
    """Trainable tensors in place around a frozen base; leaving its context takes them away again."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the tensors that travel."""

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Everything that trains, by name; private ones included."""

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Give an optimiser the parameters with the learning rate that each needs."""

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Copy the tensors that travel."""

    def load(self, state: State) -> None:
        """Set the tensors that travel; `LayoutMismatch` when names or shapes differ."""

    def load_global(self, state: State) -> None:
        """Set the frozen global branch of a gated adapter; `AdapterInPlace` when there is none."""

    def load_fold(self, fold: Mapping[str, Factors]) -> None:
        """Set what was added to the base model for good, by module; `AdapterInPlace` where that cannot be."""

    def private_state(self) -> dict[str, NDArray[np.float32]]:
        """Copy the tensors that never leave the client: gates, private LoRA ranks."""

    def load_private(self, state: State) -> None:
        """Set the tensors that never leave the client."""

    def merged_state(self) -> dict[str, NDArray[np.float32]]:
        """Give the one adapter that acts: local and global branch mixed by the gates."""

    def as_lora(self) -> dict[str, LoraFactors]:
        """Give the same function as ordinary LoRA factors, by the path of the module that they adapt."""

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty | None:
        """Return the adapter's own loss term of a round on a client's examples; None = it has none."""

    def end_round(self) -> None:
        """Update what is not trained by gradients, after a round's training."""

    def remove(self) -> None:
        """Put the original modules back. Twice is as good as once."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Removable(ABC):
    """A context whose end is `remove`, around a base model that stays as it was."""

    @abstractmethod
    def remove(self) -> None:
        """Put the original modules back."""

    def load_fold(self, fold: Mapping[str, Factors]) -> None:
        """Refuse: only an ordinary LoRA by itself says what it adds by (layer, role)."""
        raise AdapterInPlace("only an ordinary LoRA that travels whole can be folded into a base model")

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty | None:
        return None

    def end_round(self) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def require_bare(base: BaseModel) -> None:
    """Make sure that no adapter is in place.

    Raises:
        AdapterInPlace: one is.
    """
    own = (PQLinear, FusedLora, FoldedLinear)
    if hasattr(base.model, "peft_config") or any(isinstance(m, own) for m in base.model.modules()):
        raise AdapterInPlace(
            f"{base.slug} carries an adapter where the bare model is needed; leave that adapter first"
        )


def replace_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put `module` in the place of the one at `path`."""
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def copy_in(targets: Mapping[str, torch.Tensor], state: State) -> None:
    """Copy arrays into tensors of the same names and shapes.

    Raises:
        LayoutMismatch: a name is missing or too many, or a shape differs; nothing was copied.
    """
    require_fit({name: tuple(target.shape) for name, target in targets.items()}, state)
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(torch.from_numpy(np.array(state[name], dtype=np.float32)))


def require_fit(layout: Layout, state: State) -> None:
    """Make sure that arrays have the names and shapes of a layout.

    Raises:
        LayoutMismatch: a name is missing or too many, or a shape differs.
    """
    if layout.keys() != state.keys():
        missing, unknown = sorted(layout.keys() - state.keys()), sorted(state.keys() - layout.keys())
        raise LayoutMismatch(
            f"the adapter and the tensors for it differ: missing {missing[:3]}, unknown {unknown[:3]}; "
            "check that plan and alignment pack are those the tensors were made under"
        )
    for name, shape in layout.items():
        if shape != state[name].shape:
            raise LayoutMismatch(
                f"{name} has shape {state[name].shape} and the adapter needs {shape}; "
                "check that rank and base model are those the tensors were made for"
            )


def copy_out(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    """Copy tensors to arrays, by name in order."""
    return {name: np.array(tensors[name].detach().float().cpu().numpy()) for name in sorted(tensors)}


def side_by_side(parts: Iterable[LoraFactors]) -> LoraFactors:
    """Add LoRA up: A stacked (r1 + r2, d_in), B joined (d_out, r1 + r2), biases summed."""
    listed = list(parts)
    biases = [part.bias for part in listed if part.bias is not None]
    return LoraFactors(
        A=np.concatenate([part.A for part in listed]),
        B=np.concatenate([part.B for part in listed], axis=1),
        bias=np.sum(biases, axis=0) if biases else None,
    )
