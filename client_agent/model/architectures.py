"""The parts of a causal language model: decoder, layers, head, and the linear layer of each role.

Nothing is listed by `model_type`: roles follow from the names and shapes of the linear layers
(`named_parts.py`), and facts that names do not contain are measured on the loaded model (`measurement.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from transformers.pytorch_utils import Conv1D

from schemas.messages.federations import Role

Shape = tuple[int, int]
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class RoleLinear:
    """The linear layer of a role in one transformer layer.

    Attributes:
        path: its path in the model.
        shape: (d_out, d_in); d_out counts the role's own rows.
        rows: the role's output rows, int64 in order; None = all of them.
        reads: the roles of this layer that read the same activation, this one included.
    """

    path: str
    shape: Shape
    rows: Tensor | None
    reads: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class FrozenParts:
    """The parts of the layers of a model that no adapter changes.

    Attributes:
        expert_layers: how many layers have routed experts.
        beside_experts: the roles in these layers, of attention and shared experts.
        linears: the linear layers without a role, by path below a layer, with the number of their layers.
    """

    layers: int
    expert_layers: int = 0
    beside_experts: tuple[Role, ...] = ()
    linears: Mapping[str, int] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        """Return the facts for a silo's owner, one sentence each."""
        notes = []
        if self.expert_layers:
            beside = ", ".join(self.beside_experts) or "nothing"
            notes.append(
                f"mixture of experts: in {self.expert_layers} of {self.layers} layers the routed experts "
                f"and their router stay frozen beside {beside}"
            )
        if self.linears:
            notes.append(f"no adapter on {listed(list(self.linears))}")
        return notes


@dataclass(frozen=True, slots=True)
class Architecture:
    """Paths of the parts of one causal language model.

    Attributes:
        decoder: embeddings to final norm, without the head.
        roles: the linear layers of roles by layer; layers may differ.
        frozen: what no adapter changes.
        heads: the modules from hidden states to logits, in order; the last is the output layer.
        scale: the factor of the head's outputs; softcap: c of c tanh(logits / c), None = none.
    """

    decoder: str
    layers: str
    heads: tuple[str, ...]
    roles: tuple[Mapping[Role, RoleLinear], ...]
    frozen: FrozenParts
    scale: float = 1.0
    softcap: float | None = None

    @property
    def output_layer(self) -> str:
        return self.heads[-1]

    def of(self, layer: int, role: Role) -> RoleLinear:
        return self.roles[layer][role]

    def path(self, layer: int, role: Role) -> str:
        return self.of(layer, role).path

    def linear(self, model: nn.Module, layer: int, role: Role) -> nn.Module:
        return model.get_submodule(self.path(layer, role))

    def is_fused(self, layer: int, role: Role) -> bool:
        """Whether the role shares its linear layer with another role, or has a part of its rows only."""
        return self.of(layer, role).rows is not None

    def row_numbers(self, layer: int, role: Role) -> Tensor:
        """Return the role's output rows of its linear layer: (d_out of the role,) int64, in order."""
        placed = self.of(layer, role)
        return placed.rows if placed.rows is not None else torch.arange(placed.shape[0])

    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """Apply the head, its factor and its softcap: (..., d) -> (..., V)."""
        logits = hidden
        for path in self.heads:
            logits = cast(Tensor, model.get_submodule(path)(logits))
        if self.scale != 1:
            logits = logits * self.scale
        # As the model's own forward pass does after its head.
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def linear_shape(linear: nn.Module) -> Shape:
    """Return (d_out, d_in) of a linear layer, transposed (`Conv1D`) or not."""
    if isinstance(linear, Conv1D):
        return int(linear.nf), int(linear.nx)
    return int(cast(int, linear.out_features)), int(cast(int, linear.in_features))


def place_rows(factors: Sequence[Tensor], rows: Sequence[Tensor], d_out: int) -> Tensor:
    """Join the B (d_out of the role, r) of a layer's n roles: (d_out, n r).

    Role i is in columns i r to (i + 1) r and in the output rows `rows[i]`; other entries are 0.
    Differentiable. Leading dimensions of the factors stay.
    """
    joined = block_diagonal(factors)
    where = torch.cat(list(rows))
    *leading, _, columns = joined.shape
    return joined.new_zeros(*leading, d_out, columns).index_copy(-2, where, joined)


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """Join matrices (..., m, n) into one, whose other entries are 0; leading dimensions stay."""
    if blocks[0].ndim == 2:
        return cast(Callable[..., Tensor], torch.block_diag)(*blocks)
    widths = [block.shape[-1] for block in blocks]
    before = [sum(widths[:number]) for number in range(len(widths))]
    padded = [
        nnf.pad(block, (columns, sum(widths) - columns - width))
        for block, columns, width in zip(blocks, before, widths, strict=True)
    ]
    return torch.cat(padded, dim=-2)


def listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
