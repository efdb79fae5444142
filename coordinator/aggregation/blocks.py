"""Cut the clients' adapters into columns that can be mixed at once. Pure: layouts in, positions out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.strategies.base import Form, Module, modules_of
from schemas.maths.adapter import Layout, is_of_one_base_model, module_of

_VALUE_BYTES = 4
_COPIES_WHILE_READING = 3  # as the driver gives it, in pieces, and joined


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive values that the same clients have.

    Attributes:
        module: one of the modules inside; the weights of all of them are equal.
        size: how many values.
        begins: where they begin in each client's state, by the client's place; in values.
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
    """Go through all values of all clients, each client's in the order of its own layout.

    Modules of which `kind` says different things are never in one block.

    What a block makes necessary fits in `block_bytes` (but it has at least one value): a row of float32 for
    each client, two for each of the `receivers` among them (one is made while another is written), and
    the copies of the one row that is being read. No row is longer than a stored chunk: reading more at once
    is no faster, and few clients need not fill the budget.
    """
    for run in _runs(layouts, kind):
        rows = len(run.begins) + 2 * len(run.begins.keys() & receivers) + _COPIES_WHILE_READING
        most = max(1, min(block_bytes // rows, CHUNK_BYTES) // _VALUE_BYTES)
        for at in range(0, run.size, most):
            begins = {place: begin + at for place, begin in run.begins.items()}
            yield Block(run.module, min(most, run.size - at), begins)


def _runs(layouts: Sequence[Layout], kind: Callable[[Module], object]) -> Iterator[Block]:
    """Join neighbouring tensors that the same clients have, in the same shapes of the whole module.

    Those of different kinds never join: their weights may differ.
    Layouts are sorted by name and so is their union: what is consecutive there is so in each client's state.
    """
    holders: dict[tuple[str, Form], list[int]] = {}
    for place, layout in enumerate(layouts):
        forms = modules_of(layout)
        for tensor in layout:
            holders.setdefault((tensor, forms[module_of(tensor)]), []).append(place)
    positions = [0] * len(layouts)
    run: Block | None = None
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
