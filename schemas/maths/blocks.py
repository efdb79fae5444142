"""The layers that carry an adapter, and the last layer of each block of them.

Models of any depth agree on block ordinals.
"""

from __future__ import annotations

from collections.abc import Sequence


def adapted_layers(chosen: int | Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """Return the layers of a model of `depth` layers that carry an adapter, in order.

    `chosen` is `AdapterPlan.layers`: the number of last layers, layers by number, or None for all.

    Raises:
        ValueError: the model lacks one of them.
    """
    if chosen is None:
        return tuple(range(depth))
    if isinstance(chosen, int):
        if chosen > depth:
            raise ValueError(f"a model of {depth} layers has no last {chosen}")
        return tuple(range(depth - chosen, depth))
    if chosen[-1] >= depth:
        raise ValueError(f"a model of {depth} layers has no layer {chosen[-1]}; the first one is 0")
    return tuple(chosen)


def block_ends(layers: int, blocks: int) -> tuple[int, ...]:
    """Return the index of the last layer of each block, at equal relative depth in every architecture.

    With step = layers // blocks: `k step - 1` for k = 1..blocks-1, and `layers - 1`
    (FedMosaic, arXiv 2506.11024, block-wise aggregation).

    Raises:
        ValueError: there are fewer layers than blocks.
    """
    if blocks < 1 or layers < blocks:
        raise ValueError(f"{layers} layers cannot be cut into {blocks} blocks")
    # Blocks end at equal relative depth, so that models of any depth agree on them.
    step = layers // blocks
    return (*(k * step - 1 for k in range(1, blocks)), layers - 1)
