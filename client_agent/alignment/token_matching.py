"""Match the tokens of two models, whose tokenizers split texts differently, by the text read so far.

Two positions match if their tokens end at the same character.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from client_agent.alignment.anchor_responses import Site, Text, batches_of, run_batch
from client_agent.alignment.pack import OFFSETS, Pack
from client_agent.errors import AlignmentImpossible
from client_agent.model.loading import BaseModel
from schemas.messages.alignment import Anchor
from schemas.wire.envelope import Array

Progress = Callable[[str, int, int], None]
"""Called with the name of the pass, the number of texts done, and the total."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Matched rows of a batch: h by source (n, d_in), g by name (m, d_out), and the pivot's row indices."""

    h: Mapping[str, Tensor]
    g: Mapping[str, Tensor]
    z_rows: Sequence[int]
    g_rows: Sequence[int]


class Responses:
    """The pivot's responses by anchor and by the character offset at which a token ends.

    Raises:
        AlignmentImpossible: the pack was made from another pivot, rank or anchors.
    """

    def __init__(
        self, pivot: BaseModel, pivots_pack: Pack, anchors: Sequence[Anchor], rank: int, device: torch.device
    ) -> None:
        if pivots_pack.manifest.alignment_set != alignment_set(
            pivot.slug, anchors, pivots_pack.tensors, rank
        ):
            raise AlignmentImpossible(
                f"the pivot's pack was not made from {pivot.slug}, rank {rank} and these {len(anchors)} "
                "anchors; check that pivot_model is the plan's pivot, or ask the operator to replace the pack"
            )
        self._pack = pivots_pack
        self._device = device
        self.z_row: dict[tuple[int, int], int] = {}
        self.g_row: dict[tuple[int, int], int] = {}
        offsets = pivots_pack.tensors[OFFSETS].tolist()
        predicting = 0
        for row, (anchor, _, end) in enumerate(offsets):
            self.z_row[anchor, end] = row
            following = offsets[row + 1] if row + 1 < len(offsets) else (-1, 0, 0)
            # A token predicts the next one, so it has a gradient only if the next one belongs to the answer.
            if following[0] == anchor and following[2] > len(anchors[anchor].prompt):
                self.g_row[anchor, end] = predicting
                predicting += 1

    def z(self, name: str, rows: Sequence[int]) -> Tensor:
        return self._tensor(self._pack.tensors[f"{name}.z"][rows])

    def g(self, name: str, rows: Sequence[int]) -> Tensor:
        return self._tensor(self._pack.tensors[f"{name}.g"][rows])

    def frames(
        self, group: Sequence[Site], sites: Mapping[str, Site], device: torch.device
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the pivot's A by source (r, d_in) and B^T by name (r, d_out), on the pivot's device."""
        tensors = self._pack.tensors
        a = {sites[site.name].source: self._tensor(tensors[f"{site.name}.A"]).to(device) for site in group}
        return a, {site.name: self._tensor(tensors[f"{site.name}.B"]).T.to(device) for site in group}

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.astype(np.float64)).to(self._device)


def response_rows(
    base: BaseModel,
    sites: Sequence[Site],
    texts: Sequence[Text],
    progress: Progress | None,
    stage: str,
    responses: Responses | None = None,
) -> Iterator[Rows]:
    """Run all texts and yield rows per batch; with the pivot's responses, matched rows only."""
    done = 0
    for batch in batches_of(texts):
        result = run_batch(base, sites, batch)
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
            progress(stage, done, len(texts))


def matched(
    batch: Sequence[Text], places: Sequence[tuple[int, int]], rows: Mapping[tuple[int, int], int]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the (text, position) pairs whose token ends where a pivot token ends, and the pivot's rows.

    A byte-level tokenizer may split a character into several tokens that end at the same offset; only the
    last of them has read the whole character.
    """
    candidates = [
        (i, t, rows.get((batch[i].anchor, batch[i].encoded.spans[t][1])))
        for i, t in places
        if batch[i].encoded.spans[t + 1 : t + 2] != batch[i].encoded.spans[t : t + 1]
    ]
    matches = [(i, t, row) for i, t, row in candidates if row is not None]
    return [(i, t) for i, t, _ in matches], [row for *_, row in matches]


def _at(values: Tensor, places: Sequence[tuple[int, int]]) -> Tensor:
    index = torch.tensor(places, dtype=torch.long, device=values.device).reshape(-1, 2)
    return values[index[:, 0], index[:, 1]]


def alignment_set(pivot: str, anchors: Sequence[Anchor], tensors: Mapping[str, Array], rank: int) -> str:
    """Return the digest of pivot, anchors, the pivot's responses and rank."""
    digest = hashlib.sha256()
    texts = [[anchor.id, anchor.prompt, anchor.answer] for anchor in anchors]
    digest.update(json.dumps([pivot, texts, rank]).encode())
    # Only what others are fitted to: the frames themselves may be computed anew with other bits.
    for name in sorted(name for name in tensors if name == OFFSETS or name.endswith((".z", ".g"))):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return f"sha256:{digest.hexdigest()}"
