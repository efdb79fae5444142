"""Match two models' tokens, which their tokenizers cut differently, and give the rows that both have.

A position stands for the text read so far, so two positions match when their tokens end at the same
character. Knows no solving.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from client_agent.alignment.anchor_responses import Site, Text, answered, batches_of
from client_agent.alignment.pack import OFFSETS, Pack
from client_agent.errors import AlignmentImpossible
from client_agent.model.loading import BaseModel
from schemas.messages.alignment import Anchor
from schemas.wire.envelope import Array

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many texts are through, and of how many."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch's rows that count: h by source (n, d_in), g by name (m, d_out), and the pivot's for them."""

    h: Mapping[str, Tensor]
    g: Mapping[str, Tensor]
    z_rows: Sequence[int]
    g_rows: Sequence[int]


class Responses:
    """The pivot's responses, found by anchor and by the character offset where a token ends.

    Raises:
        AlignmentImpossible: the pack's digest is not that of this pivot, rank and these anchors.
    """

    def __init__(
        self, pivot: BaseModel, of_pivot: Pack, anchors: Sequence[Anchor], rank: int, device: torch.device
    ) -> None:
        if of_pivot.manifest.alignment_set != alignment_set(pivot.slug, anchors, of_pivot.tensors, rank):
            raise AlignmentImpossible(
                f"the pivot's pack was not made from {pivot.slug}, rank {rank} and these {len(anchors)} "
                "anchors; check that pivot_model is the plan's pivot, and have the pack replaced if it is"
            )
        self._pack = of_pivot
        self._device = device
        self.z_row: dict[tuple[int, int], int] = {}
        self.g_row: dict[tuple[int, int], int] = {}
        offsets = of_pivot.tensors[OFFSETS].tolist()
        predicting = 0
        for row, (anchor, _, end) in enumerate(offsets):
            self.z_row[anchor, end] = row
            following = offsets[row + 1] if row + 1 < len(offsets) else (-1, 0, 0)
            if following[0] == anchor and following[2] > len(anchors[anchor].prompt):
                self.g_row[anchor, end] = predicting
                predicting += 1

    def z(self, name: str, rows: Sequence[int]) -> Tensor:
        """Give these rows of z (len(rows), r) of a (block, role), float64."""
        return self._tensor(self._pack.tensors[f"{name}.z"][rows])

    def g(self, name: str, rows: Sequence[int]) -> Tensor:
        """Give these rows of B^T g (len(rows), r) of a (block, role), float64."""
        return self._tensor(self._pack.tensors[f"{name}.g"][rows])

    def frames(
        self, group: Sequence[Site], sites: Mapping[str, Site], device: torch.device
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Give the pivot's A by its source (r, d_in) and B^T by name (r, d_out), on the pivot's device."""
        found = self._pack.tensors
        a = {sites[site.name].source: self._tensor(found[f"{site.name}.A"]).to(device) for site in group}
        return a, {site.name: self._tensor(found[f"{site.name}.B"]).T.to(device) for site in group}

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.astype(np.float64)).to(self._device)


def passes(
    base: BaseModel,
    sites: Sequence[Site],
    texts: Sequence[Text],
    progress: Progress | None,
    what: str,
    responses: Responses | None = None,
) -> Iterator[Rows]:
    """Run all texts; with the pivot's responses keep only the rows that the pivot has too."""
    done = 0
    for batch in batches_of(texts):
        result = answered(base, sites, batch)
        read = [(i, t) for i, text in enumerate(batch) for t in text.read]
        predicting = [(i, t) for i, text in enumerate(batch) for t in text.predicting]
        z_rows: list[int] = []
        g_rows: list[int] = []
        if responses is not None:
            read, z_rows = matched(batch, read, responses.z_row)
            predicting, g_rows = matched(batch, predicting, responses.g_row)
        yield Rows(
            {source: _at(h, read) for source, h in result.h.items()},
            {name: _at(g, predicting) for name, g in result.g.items()},
            z_rows,
            g_rows,
        )
        done += len(batch)
        if progress is not None:
            progress(what, done, len(texts))


def matched(
    batch: Sequence[Text], places: Sequence[tuple[int, int]], rows: Mapping[tuple[int, int], int]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Keep the places (text, position) whose token ends where one of the pivot's does, with the pivot's row.

    A byte-level tokenizer may cut a character into several tokens, all of which end with it: only the last
    has read it.
    """
    found = [
        (i, t, rows.get((batch[i].anchor, batch[i].encoded.spans[t][1])))
        for i, t in places
        if batch[i].encoded.spans[t + 1 : t + 2] != batch[i].encoded.spans[t : t + 1]
    ]
    return [(i, t) for i, t, row in found if row is not None], [row for *_, row in found if row is not None]


def _at(values: Tensor, places: Sequence[tuple[int, int]]) -> Tensor:
    """Pick the rows at (text, position): (n, t, d) -> (len(places), d)."""
    index = torch.tensor(places, dtype=torch.long, device=values.device).reshape(-1, 2)
    return values[index[:, 0], index[:, 1]]


def alignment_set(pivot: str, anchors: Sequence[Anchor], tensors: Mapping[str, Array], rank: int) -> str:
    """Digest what responses mean: pivot, anchors, the responses themselves, rank."""
    digest = hashlib.sha256()
    texts = [[anchor.id, anchor.prompt, anchor.answer] for anchor in anchors]
    digest.update(json.dumps([pivot, texts, rank]).encode())
    for name in sorted(name for name in tensors if name == OFFSETS or name.endswith((".z", ".g"))):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return f"sha256:{digest.hexdigest()}"
