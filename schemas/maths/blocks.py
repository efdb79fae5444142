"""The last layer of each transformer block. Models of any depth agree on block ordinals."""

from __future__ import annotations


def block_ends(layers: int, blocks: int) -> tuple[int, ...]:
    """Return the index of the last layer of each block, at equal relative depth in every architecture.

    With step = layers // blocks: `k step - 1` for k = 1..blocks-1, and `layers - 1`
    (FedMosaic, arXiv 2506.11024, block-wise aggregation).

    Raises:
        ValueError: there are fewer layers than blocks.
    """
    if blocks < 1 or layers < blocks:
        raise ValueError(f"{layers} layers cannot be cut into {blocks} blocks")
    step = layers // blocks
    return (*(k * step - 1 for k in range(1, blocks)), layers - 1)
