"""Sketch the gradient of each record separately, for a private release.

Each record is a batch of its own, so that its contribution does not depend on other records, even in
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from client_agent.adapters.base import require_bare
from client_agent.model.examples import Example, encode_example
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import collate, pad_id
from client_agent.sketches.gradient import ENTRIES_AT_ONCE, MAX_LENGTH, buckets_and_signs, last_block_gradient
from schemas.maths.seeded_random import stream
from schemas.messages.federations import SignaturePlan

_RECORDS_AT_ONCE = 8

Factors = tuple[Tensor, Tensor]
"""g (m, d) and u (m, d_ff) of the m answer tokens of a record, whose gradient is g^T u."""


def record_sketches(
    base: BaseModel, records: Sequence[Example], plan: SignaturePlan
) -> Iterator[NDArray[np.float64]]:
    """Yield the sketch of each record's mean-loss gradient, unclipped: (plan.dim,), in order.

    Raises:
        AdapterInPlace: the model carries an adapter.
    """
    require_bare(base)
    for start in range(0, len(records), _RECORDS_AT_ONCE):
        factors = [_factors(base, record) for record in records[start : start + _RECORDS_AT_ONCE]]
        yield from sketch_factors(factors, plan.dim, plan.seed)


def sketch_factors(factors: Sequence[Factors], dim: int, seed: int) -> NDArray[np.float64]:
    """Sketch g^T u of several records with the buckets and signs of `count_sketch`: (records, dim).

    Only a block of a gradient's rows is in memory at a time.
    """
    hashes = stream("sketch", seed)
    d, width = factors[0][0].shape[1], factors[0][1].shape[1]
    rows = max(1, ENTRIES_AT_ONCE // width)
    sums = np.zeros((len(factors), dim))
    for start in range(0, d, rows):
        stop = min(d, start + rows)
        bucket, sign = buckets_and_signs(hashes, (stop - start) * width, dim)
        for row, (g, u) in zip(sums, factors, strict=True):
            # A block of rows at a time: all gradients of the records together would not fit into memory.
            part = (g[:, start:stop].T @ u).double().cpu().numpy().reshape(-1)  # ((stop - start) * d_ff,)
            row += np.bincount(bucket, weights=part * sign, minlength=dim)
    return sums


def _factors(base: BaseModel, record: Example) -> Factors:
    text = encode_example(record, base.tokenizer, min(MAX_LENGTH, base.positions))
    g, u, _ = last_block_gradient(base, collate([text], pad=pad_id(base.tokenizer)).to(base.device))
    return g / len(g), u
