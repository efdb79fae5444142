"""Names and shapes of adapter tensors. A layout maps tensor name to shape, sorted by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from math import prod

Shape = tuple[int, ...]
Layout = dict[str, Shape]

SIGNATURE = "signature"
_BLOCK, _LAYER = "b", "l"
_OF_LAYER = re.compile(rf"(x[0-9]+\.)?{_LAYER}")  # of a bank of experts: `x3.l0.q`


def module_name(block: int, role: str) -> str:
    return f"{_BLOCK}{block}.{role}"


def layer_module_name(layer: int, role: str) -> str:
    return f"{_LAYER}{layer}.{role}"


def is_of_one_base_model(module: str) -> bool:
    """Whether a module's tensors are comparable only between clients of the identical base model.

    True of every (layer, role): its LoRA acts on the activations of one model, whatever frames it shares.
    """
    return _OF_LAYER.match(module) is not None


def module_of(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def role_of(module: str) -> str:
    """Return the role of a (block, role) or (layer, role): `b0.q` -> `q`."""
    return module.rpartition(".")[2]


def factor_of(tensor: str) -> str:
    """Return the factor of a tensor within its module: `l0.q.A` -> `A`."""
    return tensor.rpartition(".")[2]


def block_modules(blocks: int, roles: Collection[str]) -> tuple[str, ...]:
    return tuple(module_name(block, role) for block in range(blocks) for role in roles)


def pq_layout(modules: Iterable[str], rank: int, *, bias: bool = True) -> Layout:
    """Return the layout of `P` (r, r) and, with `bias`, `Q` (r,) of each (block, role)."""
    shapes: Layout = {}
    for module in modules:
        shapes[f"{module}.P"] = (rank, rank)
        if bias:
            shapes[f"{module}.Q"] = (rank,)
    return in_order(shapes)


def lora_layout(layers: int, shapes: Mapping[str, tuple[int, int]], rank: int) -> Layout:
    """Return the layout of a LoRA where every layer has each role of `shapes`, (d_out, d_in) by role."""
    modules = {
        layer_module_name(layer, role): shape for layer in range(layers) for role, shape in shapes.items()
    }
    return lora_module_layout(modules, rank)


def lora_module_layout(shapes: Mapping[str, tuple[int, int]], rank: int) -> Layout:
    """Return `A` (r, d_in), `B` (d_out, r) per (layer, role); `shapes` has (d_out, d_in) of each."""
    tensors: Layout = {}
    for module, (d_out, d_in) in shapes.items():
        tensors[f"{module}.A"] = (rank, d_in)
        tensors[f"{module}.B"] = (d_out, rank)
    return in_order(tensors)


def at_rank(layout: Layout, rank: int) -> Layout:
    """Return the layout with `A` and `B` at another rank."""
    return {
        name: (rank, shape[1]) if factor_of(name) == "A" else (shape[0], rank)
        for name, shape in layout.items()
    }


def lora_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted (layer, role)s with an `A` among these tensors; row i belongs to the i-th."""
    return tuple(sorted(module_of(name) for name in names if name.endswith(".A")))


def delta_layout(layout: Mapping[str, Shape]) -> Layout:
    """Return `RA` (k, d_in), `RB` (d_out, k) per (layer, role) of a base delta of the largest rank k."""
    shapes: Layout = {}
    for module in lora_modules(layout):
        d_in, d_out = layout[f"{module}.A"][1], layout[f"{module}.B"][0]
        # A matrix of this shape has no larger rank, however many deltas are added.
        rank = min(d_in, d_out)
        shapes |= {f"{module}.RA": (rank, d_in), f"{module}.RB": (d_out, rank)}
    return in_order(shapes)


def prior_name(module: str) -> str:
    return f"{module}.prior"


def is_prior(tensor: str) -> bool:
    return factor_of(tensor) == "prior"


def prior_layout(layout: Mapping[str, Shape]) -> Layout:
    """Return the priors (2, r) of strategy `ca_pfl`, one per (layer, role) with `A` (r, d_in)."""
    return {prior_name(module): (2, layout[f"{module}.A"][0]) for module in lora_modules(layout)}


def in_order(shapes: Mapping[str, Shape]) -> Layout:
    """Return a layout sorted by tensor name, the order of safetensors for tensors of one dtype."""
    return {name: shapes[name] for name in sorted(shapes)}


def size(layout: Mapping[str, Shape]) -> int:
    return sum(prod(shape) for shape in layout.values())
