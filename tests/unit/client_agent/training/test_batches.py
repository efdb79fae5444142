"""Batches: whole passes, seeded, with little padding."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from client_agent.model.tokens import TokenizedText
from client_agent.training.loop import iterate_batches
from schemas.maths.seeded_random import permutation


def texts(count: int) -> list[TokenizedText]:
    return [TokenizedText((i, i), (False, True), ((0, 1), (1, 2))) for i in range(count)]


def test_batches_are_dealt_in_whole_shuffled_passes() -> None:
    dealt = [
        text.ids[0]
        for batch in islice(iterate_batches(texts(10), 4, seed=0, round_number=1), 5)
        for text in batch
    ]
    assert sorted(dealt[:10]) == sorted(dealt[10:]) == list(range(10))
    assert dealt[:10] != dealt[10:]


def test_order_follows_from_seed_and_round() -> None:
    def order(seed: int, number: int) -> list[int]:
        batches = islice(iterate_batches(texts(10), 4, seed=seed, round_number=number), 4)
        return [text.ids[0] for batch in batches for text in batch]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2) != order(1, 2)


def test_batch_of_few_examples_is_one_pass() -> None:
    assert [len(batch) for batch in islice(iterate_batches(texts(3), 8, seed=0, round_number=1), 3)] == [
        3,
        3,
        3,
    ]


def lengths(count: int) -> list[TokenizedText]:
    """Return texts of 2 to 200 tokens, most of them short."""
    sizes = [2 + int(198 * (i / count) ** 4) for i in permutation(count, "lengths")]
    return [TokenizedText((i,) * size, (True,) * size, ()) for i, size in enumerate(sizes)]


def padding(batches: list[list[TokenizedText]]) -> float:
    """Return the share of padding in the padded batches."""
    padded = sum(len(batch) * max(len(text.ids) for text in batch) for batch in batches)
    return 1 - sum(len(text.ids) for batch in batches for text in batch) / padded


def test_batches_group_equal_lengths_in_whole_passes() -> None:
    texts = lengths(1003)
    batches = list(islice(iterate_batches(texts, 8, seed=0, round_number=1), 251))  # two passes
    counts = Counter(text.ids[0] for batch in batches for text in batch)
    assert set(counts.values()) == {2, 3}
    assert len(counts) == 1003
    shuffled = [
        [texts[i] for i in permutation(1003, "any")[start : start + 8]] for start in range(0, 1000, 8)
    ]
    assert padding(batches) < padding(shuffled) / 3


def test_grouping_keeps_batches_of_passes_different() -> None:
    texts = lengths(40)
    batches = list(islice(iterate_batches(texts, 4, seed=0, round_number=1), 20))
    first, second = (
        {frozenset(text.ids[0] for text in batch) for batch in half} for half in (batches[:10], batches[10:])
    )
    assert len(first & second) < 3


def test_long_and_short_batches_alternate_at_random() -> None:
    batches = list(islice(iterate_batches(lengths(1000), 10, seed=0, round_number=1), 100))
    sizes = [max(len(text.ids) for text in batch) for batch in batches]
    assert sizes != sorted(sizes)
    assert max(sizes[:50]) > 100
    assert max(sizes[50:]) > 100
