"""Start values of adapters: equal on both sides, in pieces of any size."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.maths.adapter import in_order, lora_layout, pq_layout, size
from schemas.maths.seeded_random import uniform, words
from schemas.maths.start import first_a, from_start, start_values

LAYOUT = in_order({**pq_layout(["b0.q"], 3), **lora_layout(2, {"q": (5, 7)}, 3)})


@pytest.mark.parametrize("begin", range(12))
def test_words_from_any_offset_equal_the_stream(begin: int) -> None:
    np.testing.assert_array_equal(words(6, "key", 1, begin=begin), words(20, "key", 1)[begin : begin + 6])


def test_the_start_is_zero_except_for_a() -> None:
    whole = start_values(LAYOUT, 9, 0, size(LAYOUT))
    assert whole is not None
    at = 0
    for name, shape in LAYOUT.items():
        count = int(np.prod(shape))
        drawn = uniform(shape, 1 / np.sqrt(7), "lora", 9, name).ravel() if name.endswith("q.A") else 0.0
        np.testing.assert_array_equal(whole[at : at + count], drawn)
        at += count


def test_pieces_of_the_start_equal_the_whole() -> None:
    whole = start_values(LAYOUT, 9, 0, size(LAYOUT))
    assert whole is not None
    for begin in range(size(LAYOUT)):
        for count in (1, 5, 30):
            piece = start_values(LAYOUT, 9, begin, min(count, size(LAYOUT) - begin))
            expected = whole[begin : begin + count]
            np.testing.assert_array_equal(np.zeros_like(expected) if piece is None else piece, expected)


def test_first_rows_are_equal_for_all_ranks() -> None:
    small, large = (first_a("l0.q.A", (rank, 7), 9).reshape(rank, 7) for rank in (2, 5))
    np.testing.assert_array_equal(large[:2], small)


def test_served_zeros_of_a_pair_mean_its_start() -> None:
    served = {
        "b0.q.P": np.zeros((2, 2), np.float32),
        "l0.q.A": np.zeros((2, 5), np.float32),
        "l0.q.B": np.zeros((3, 2), np.float32),
    }
    layout = {name: values.shape for name, values in served.items()}
    start = first_a("l0.q.A", (2, 5), 7).reshape(2, 5)
    started = {name: from_start(name, served.__getitem__, 7, layout) for name in served}
    assert (started["l0.q.A"] == start).all()
    assert not started["b0.q.P"].any()
    assert not started["l0.q.B"].any()
    served["l0.q.B"][0, 0] = 1
    assert not from_start(
        "l0.q.A", served.__getitem__, 7, {name: values.shape for name, values in served.items()}
    ).any()
    served["l0.q.A"][0, 0] = 2
    assert from_start(
        "l0.q.A", served.__getitem__, 7, {name: values.shape for name, values in served.items()}
    )[0].tolist() == [2, 0, 0, 0, 0]


def test_zeros_of_a_without_b_mean_its_start() -> None:
    served = {"l0.q.A": np.zeros((2, 5), np.float32)}
    start = from_start("l0.q.A", served.__getitem__, 7, {"l0.q.A": (2, 5)})
    assert (start == first_a("l0.q.A", (2, 5), 7).reshape(2, 5)).all()
