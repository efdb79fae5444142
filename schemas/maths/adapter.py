"""Names and shapes of adapter tensors. A layout is a mapping from tensor name to shape, sorted by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod

Shape = tuple[int, ...]
Layout = dict[str, Shape]

SIGNATURE = "signature"
_BLOCK, _LAYER = "b", "l"


def module_name(block: int, role: str) -> str:
    """Name a (block, role): `b0.q`."""
    return f"{_BLOCK}{block}.{role}"


def layer_module_name(layer: int, role: str) -> str:
    """Name a (layer, role), which ordinary LoRA adapts: `l0.q`."""
    return f"{_LAYER}{layer}.{role}"


def is_of_one_base_model(module: str) -> bool:
    """Say whether a module's tensors mean something to clients of the identical base model only.

    So do those of a (layer, role): they act on one model's own activations, whatever frames it shares.
    """
    return module.startswith(_LAYER)


def module_of(tensor: str) -> str:
    """Give the (block, role) or (layer, role) that a tensor belongs to: `b0.q.P` -> `b0.q`."""
    return tensor.rpartition(".")[0]


def factor_of(tensor: str) -> str:
    """Give which factor of its module a tensor is: `l0.q.A` -> `A`."""
    return tensor.rpartition(".")[2]


def block_modules(blocks: int, roles: Collection[str]) -> tuple[str, ...]:
    """Name every (block, role), in the order of blocks, then of roles."""
    return tuple(module_name(block, role) for block in range(blocks) for role in roles)


def pq_layout(modules: Iterable[str], rank: int) -> Layout:
    """Lay out `P` (r, r) and `Q` (r,) of each (block, role)."""
    shapes: Layout = {}
    for module in modules:
        shapes[f"{module}.P"] = (rank, rank)
        shapes[f"{module}.Q"] = (rank,)
    return in_order(shapes)


def lora_layout(layers: int, shapes: Mapping[str, tuple[int, int]], rank: int) -> Layout:
    """Lay out `A` (r, d_in), `B` (d_out, r) of every (layer, role); `shapes` gives (d_out, d_in) per role."""
    tensors: Layout = {}
    for layer in range(layers):
        for role, (d_out, d_in) in shapes.items():
            module = layer_module_name(layer, role)
            tensors[f"{module}.A"] = (rank, d_in)
            tensors[f"{module}.B"] = (d_out, rank)
    return in_order(tensors)


def at_rank(layout: Layout, rank: int) -> Layout:
    """Give the layout that A and B of another rank have."""
    return {
        name: (rank, shape[1]) if factor_of(name) == "A" else (shape[0], rank)
        for name, shape in layout.items()
    }


def lora_modules(names: Iterable[str]) -> tuple[str, ...]:
    """List the (layer, role)s that have an A among these tensors, in order: row i belongs to the i-th."""
    return tuple(sorted(module_of(name) for name in names if name.endswith(".A")))


def prior_name(module: str) -> str:
    """Name the tensor of a module's prior: `l0.q.prior`."""
    return f"{module}.prior"


def is_prior(tensor: str) -> bool:
    """Say whether a tensor is the prior of a module."""
    return factor_of(tensor) == "prior"


def prior_layout(layout: Mapping[str, Shape]) -> Layout:
    """Lay out the prior (2, r) of every (layer, role) that has an A (r, d_in), as strategy `ca_pfl` adds."""
    return {prior_name(module): (2, layout[f"{module}.A"][0]) for module in lora_modules(layout)}


def in_order(shapes: Mapping[str, Shape]) -> Layout:
    """Sort a layout by tensor name: the order in which safetensors writes tensors of one dtype."""
    return {name: shapes[name] for name in sorted(shapes)}


def size(layout: Mapping[str, Shape]) -> int:
    """Count the values of a layout."""
    return sum(prod(shape) for shape in layout.values())
