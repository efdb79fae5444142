"""Split the clients' adapters into blocks of columns that are mixed at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.strategies.base import Form, Module, modules_of
from schemas.maths.adapter import Layout, is_of_one_base_model, module_of

_VALUE_BYTES = 4
_COPIES_WHILE_READING = 3  # the bytes of the driver, its pieces, and their concatenation


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive values of the same clients.

    Attributes:
        module: one of the modules inside; the weights of all of them are equal.
        size: number of values.
        begins: their first position in each client's state, by the client's place; in values.
    """

    module: Module
    size: int
    begins: dict[int, int]


def blocks(
    layouts: Sequence[Layout],
    receivers: Collection[int],
    block_bytes: int,
    *,
    kind: Callable[[Module], object] = is_of_one_base_model,
) -> Iterator[Block]:
    """Yield all values of all clients, each client's in the order of its own layout.

    Modules of different `kind` are never in one block.

    The memory for a block fits in `block_bytes`, but a block has at least one value. It is a row of float32
    for each client, two more for each of the `receivers`, and the copies of the row that is being read.
    """
    for run in _runs(layouts, kind):
        # Two rows per receiver: one is computed while the other is written.
        rows = len(run.begins) + 2 * len(run.begins.keys() & receivers) + _COPIES_WHILE_READING
        # No row is longer than a stored chunk: reading more at once is no faster.
        most = max(1, min(block_bytes // rows, CHUNK_BYTES) // _VALUE_BYTES)
        for offset in range(0, run.size, most):
            begins = {place: begin + offset for place, begin in run.begins.items()}
            yield Block(run.module, min(most, run.size - offset), begins)


def _runs(layouts: Sequence[Layout], kind: Callable[[Module], object]) -> Iterator[Block]:
    """Join neighbouring tensors of one kind that the same clients have, in modules of the same shapes."""
    holders: dict[tuple[str, Form], list[int]] = {}
    for place, layout in enumerate(layouts):
        forms = modules_of(layout)
        for tensor in layout:
            holders.setdefault((tensor, forms[module_of(tensor)]), []).append(place)
    positions = [0] * len(layouts)
    run: Block | None = None
    # Layouts are sorted by name, and so is their union: tensors that follow each other here do so in the
    # state of each client.
    for (tensor, form), places in sorted(holders.items()):
        size = prod(dict(form)[tensor])
        if run is not None and list(run.begins) == places and kind(run.module) == kind(module_of(tensor)):
            run = Block(run.module, run.size + size, run.begins)
        else:
            if run is not None:
                yield run
            run = Block(module_of(tensor), size, {place: positions[place] for place in places})
        for place in places:
            positions[place] += size
    if run is not None:
        yield run
