"""The interface of every adapter, and functions that replace modules and copy or check tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.adapters.expert_layers import ExpertLinear, ExpertPQLinear
from client_agent.adapters.layers import BaseDeltaLinear, LoraLinear, PQLinear
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import Layout
from schemas.maths.factors import Factors
from schemas.maths.factors import State as State

Penalty = Callable[[Mapping[str, nn.Parameter]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """The update of one linear layer W as an ordinary LoRA: W x + B A x + bias; float32.

    A is (r, d_in), B is (d_out, r) with every scale in it, bias is (d_out,) or None.
    """

    A: NDArray[np.float32]
    B: NDArray[np.float32]
    bias: NDArray[np.float32] | None


class Adapter(Protocol):
    """Trainable tensors around a frozen base model; leaving the context restores the base model.

    Attributes:
        is_sent: whether the tensors of `state`, which are sent, are those that act in the model.
    """

    is_sent: bool

    @property
    def layout(self) -> Layout:
        """Return names and shapes of the tensors that are sent to the coordinator."""

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return every trainable parameter by name, private ones included."""

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return optimiser parameter groups, each with its learning rate."""

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Copy the tensors that are sent to the coordinator."""

    def load(self, state: State) -> None:
        """Set the tensors of `state`.

        Raises:
            LayoutMismatch: names or shapes differ.
        """

    def load_global(self, state: State) -> None:
        """Set the frozen global branch of a gated adapter.

        Raises:
            AdapterInPlace: the adapter has no global branch.
            LayoutMismatch: names or shapes differ.
        """

    def load_base_delta(self, base_delta: Mapping[str, Factors]) -> None:
        """Set the base delta by module name, in place of the previous one.

        Raises:
            AdapterInPlace: adapters of this kind accept no base delta.
            LayoutMismatch: a module is not adapted, or has other widths.
        """

    def private_state(self) -> dict[str, NDArray[np.float32]]:
        """Copy the tensors that never leave the client: gates, private LoRA ranks."""

    def load_private(self, state: State) -> None:
        """Set the tensors of `private_state`."""

    def merged_state(self) -> dict[str, NDArray[np.float32]]:
        """Return the state of the equivalent adapter with one branch: local and global mixed by the gates."""

    def as_lora(self) -> dict[str, LoraFactors]:
        """Return the equivalent ordinary LoRA factors by module path."""

    def penalty(self, examples: Sequence[Example], max_length: int, round_number: int) -> Penalty | None:
        """Return the adapter's own loss term of a round on a client's examples; None = it has none."""

    def end_round(self) -> None:
        """Update what is not trained by gradients, after a round's training."""

    def remove(self) -> None:
        """Restore the original modules. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AdapterBase(ABC):
    """A context manager that calls `remove` on exit, and by default refuses a base delta."""

    is_sent: bool = True

    @abstractmethod
    def remove(self) -> None: ...

    def load_base_delta(self, base_delta: Mapping[str, Factors]) -> None:
        """Raise `AdapterInPlace`: only an ordinary LoRA maps its tensors to (layer, role)."""
        raise AdapterInPlace(
            "this adapter accepts no base delta; use a strategy whose ordinary LoRA is sent as a whole"
        )

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


class WholeAdapter(AdapterBase):
    """An adapter in place of linear layers, whose tensors are all sent: none is private to the client."""

    def __init__(self, base: BaseModel) -> None:
        """Check that the base model is bare.

        Raises:
            AdapterInPlace: it carries an adapter already.
        """
        require_bare(base)
        self._model = cast(nn.Module, base.model)
        self._base_layers: dict[str, nn.Module] = {}

    @abstractmethod
    def state(self) -> dict[str, NDArray[np.float32]]: ...

    def private_state(self) -> dict[str, NDArray[np.float32]]:
        return {}

    def load_private(self, state: State) -> None:
        copy_in({}, state)

    def merged_state(self) -> dict[str, NDArray[np.float32]]:
        return self.state()

    def remove(self) -> None:
        for path, base_layer in self._base_layers.items():
            replace_module(self._model, path, base_layer)
        self._base_layers.clear()

    def _wrap(self, path: str, layer: nn.Module) -> None:
        """Put a layer in place of a base layer, until `remove`."""
        self._base_layers[path] = self._model.get_submodule(path)
        replace_module(self._model, path, layer)


# All layers that stand for a base layer. A new kind belongs here: otherwise a model that carries it counts as
# bare.
_ADAPTER_LAYERS = (PQLinear, LoraLinear, ExpertLinear, ExpertPQLinear, BaseDeltaLinear)


def lowest_adapted_layer(base: BaseModel) -> int:
    """Return the lowest layer with an adapter in place; without one, the number of layers."""
    layers = cast(nn.ModuleList, base.model.get_submodule(base.parts.layers))
    adapted = (n for n, layer in enumerate(layers) if _is_adapted(layer))
    return next(adapted, base.layers)


def _is_adapted(module: nn.Module) -> bool:
    return any(isinstance(child, _ADAPTER_LAYERS) for child in module.modules())


def require_bare(base: BaseModel) -> None:
    """Check that the base model carries no adapter.

    Raises:
        AdapterInPlace: it carries one.
    """
    if hasattr(base.model, "peft_config") or _is_adapted(base.model):
        raise AdapterInPlace(
            f"{base.slug} already carries an adapter, and the bare model is needed; remove that adapter first"
        )


def adapter_tensors(base: BaseModel) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of the adapter's layers by their path in the base model."""
    return {
        f"{path}.{name}": tensor
        for path, module in base.model.named_modules()
        if isinstance(module, _ADAPTER_LAYERS)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if not name.startswith("base_layer.")
    }


@contextmanager
def set_aside(base: BaseModel) -> Iterator[None]:
    """Take the adapter's layers out of the base model; on exit they are back, as they were."""
    outer: dict[str, nn.Module] = {}
    model: nn.Module = base.model
    for path, module in model.named_modules():
        # An adapter may wrap another one; the outermost layer holds them all.
        if isinstance(module, _ADAPTER_LAYERS) and not any(path.startswith(f"{above}.") for above in outer):
            outer[path] = module
    for path, layer in outer.items():
        inner: nn.Module = layer
        while isinstance(inner, _ADAPTER_LAYERS):
            inner = inner.base_layer
        replace_module(model, path, inner)
    try:
        yield
    finally:
        for path, layer in outer.items():
            replace_module(model, path, layer)


def replace_module(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def copy_in(targets: Mapping[str, torch.Tensor], state: State) -> None:
    """Copy arrays into tensors of the same names and shapes.

    Raises:
        LayoutMismatch: a name is missing or unexpected, or a shape differs; nothing was copied.
    """
    require_fit({name: tuple(target.shape) for name, target in targets.items()}, state)
    with torch.no_grad():
        for name, target in targets.items():
            # Into the same storage, to which optimisers and layers refer.
            target.copy_(torch.from_numpy(np.array(state[name], dtype=np.float32)))


def require_fit(layout: Layout, state: State) -> None:
    """Check that arrays have the names and shapes of a layout.

    Raises:
        LayoutMismatch: a name is missing or unexpected, or a shape differs.
    """
    if layout.keys() != state.keys():
        missing, unexpected = sorted(layout.keys() - state.keys()), sorted(state.keys() - layout.keys())
        raise LayoutMismatch(
            f"the tensors do not fit the adapter: missing {missing[:3]}, unexpected {unexpected[:3]}; "
            "use the plan and the alignment pack that the tensors were trained with"
        )
    for name, shape in layout.items():
        if shape != state[name].shape:
            raise LayoutMismatch(
                f"{name} has shape {state[name].shape}, and the adapter needs {shape}; "
                "use the rank and the base model that the tensors were trained with"
            )


def copy_out(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    # A copy: NumPy would share the memory of a tensor on the CPU, which training goes on changing.
    return {name: np.array(tensors[name].detach().float().cpu().numpy()) for name in sorted(tensors)}


def side_by_side(factors: Iterable[LoraFactors]) -> LoraFactors:
    """Concatenate LoRA factors: A stacked (r1 + r2, d_in), B joined (d_out, r1 + r2), biases summed."""
    summands = list(factors)
    biases = [summand.bias for summand in summands if summand.bias is not None]
    return LoraFactors(
        A=np.concatenate([summand.A for summand in summands]),
        B=np.concatenate([summand.B for summand in summands], axis=1),
        bias=np.sum(biases, axis=0) if biases else None,
    )
