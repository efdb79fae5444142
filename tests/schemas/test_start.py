"""Where adapters start: the same numbers on both sides, in whatever pieces they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.maths.adapter import in_order, lora_layout, pq_layout, size
from schemas.maths.draws import uniform, words
from schemas.maths.start import first_a, start_values

LAYOUT = in_order({**pq_layout(1, ["q"], 3), **lora_layout(2, {"q": (5, 7)}, 3)})


@pytest.mark.parametrize("begin", range(12))
def test_words_from_the_middle_of_a_stream_are_those_of_the_whole(begin: int) -> None:
    np.testing.assert_array_equal(words(6, "key", 1, begin=begin), words(20, "key", 1)[begin : begin + 6])


def test_the_start_is_zero_but_for_a() -> None:
    whole = start_values(LAYOUT, 9, 0, size(LAYOUT))
    assert whole is not None
    at = 0
    for name, shape in LAYOUT.items():
        count = int(np.prod(shape))
        drawn = uniform(shape, 1 / np.sqrt(7), "lora", 9, name).ravel() if name.endswith("q.A") else 0.0
        np.testing.assert_array_equal(whole[at : at + count], drawn)
        at += count


def test_pieces_of_the_start_are_pieces_of_the_whole() -> None:
    whole = start_values(LAYOUT, 9, 0, size(LAYOUT))
    assert whole is not None
    for begin in range(size(LAYOUT)):
        for count in (1, 5, 30):
            piece = start_values(LAYOUT, 9, begin, min(count, size(LAYOUT) - begin))
            wanted = whole[begin : begin + count]
            np.testing.assert_array_equal(np.zeros_like(wanted) if piece is None else piece, wanted)


def test_the_first_rows_of_a_larger_rank_are_those_of_a_smaller_one() -> None:
    small, large = (first_a("l0.q.A", (rank, 7), 9).reshape(rank, 7) for rank in (2, 5))
    np.testing.assert_array_equal(large[:2], small)
