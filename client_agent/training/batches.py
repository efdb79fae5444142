"""Seeded batches of texts without end, grouped by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from client_agent.model.tokens import Encoded
from schemas.maths.seeded_random import permutation
from schemas.messages.training import TrainingPlan

_WINDOW_BATCHES = 16
_WINDOWS_PER_PASS = 4
"""With fewer windows, sorting would put the same texts together in every pass."""


def deal(
    texts: Sequence[Encoded], plan: TrainingPlan, *, seed: int, round_number: int, done: int
) -> Iterator[list[list[Encoded]]]:
    """Yield the batches of each step, `plan.accumulation` of them, after `done` steps."""
    batches = iterate_batches(texts, plan.batch_size, seed=seed, round_number=round_number)
    batches = islice(batches, done * plan.accumulation, None)
    while True:
        yield list(islice(batches, plan.accumulation))


def iterate_batches(
    texts: Sequence[Encoded], batch_size: int, *, seed: int, round_number: int
) -> Iterator[list[Encoded]]:
    """Yield batches without end, in shuffled passes; no text occurs twice in a pass.

    A pass is shuffled and cut into windows of up to 16 batches, at most a quarter of the pass. The texts of a
    window are sorted by length, so that a batch needs little padding, and its batches are shuffled. A batch
    that ends a pass continues with texts of the next. With fewer texts than `batch_size` a batch is one pass.
    """
    size = min(batch_size, len(texts))
    window = size * max(1, min(_WINDOW_BATCHES, len(texts) // (size * _WINDOWS_PER_PASS)))
    pending: list[int] = []
    epoch = 0
    while True:
        order = permutation(len(texts), "deal", seed, round_number, epoch)
        if pending:
            missing = size - len(pending)
            yield [texts[i] for i in pending + order[:missing]]
            order = order[missing:]
        whole = len(order) - len(order) % size
        for start in range(0, whole, window):
            group = order[start : min(start + window, whole)]
            if len(group) > size:
                group.sort(key=lambda i: len(texts[i].ids))
            batches = [group[i : i + size] for i in range(0, len(group), size)]
            for index in permutation(len(batches), "batches", seed, round_number, epoch, start):
                yield [texts[i] for i in batches[index]]
        pending = order[whole:]
        epoch += 1
