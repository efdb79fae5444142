"""Voices in a mixture, and the served weights where they are too few, for all strategies."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation.voices import has_voices, require_voices
from coordinator.strategies.base import ClientFacts, Cohort, Sketch, WeightReduction, modules_of
from coordinator.strategies.opening import make
from schemas.strategies.registry import strategy_names

every_strategy = pytest.mark.parametrize("name", strategy_names())


@pytest.mark.parametrize(
    ("shares", "voices"),
    [
        ([1.0], 1),
        ([0.999, 0.0005, 0.0005], 1),
        ([0.5, 0.5], 2),
        ([0.76, 0.24], 1),
        ([0.74, 0.26], 2),
        ([1 / 3, 1 / 3, 1 / 3], 3),
        ([0.45, 0.35, 0.2], 3),
        ([0.45, 0.45, 0.1], 2),
        ([0.01] * 100, 100),
        ([0.03, 0.03, 0.03], 3),
        ([0.999, *[1e-5] * 100], 1),
    ],
)
def test_the_largest_shares_limit_the_voices(shares: list[float], voices: int) -> None:
    assert max(k for k in range(1, 101) if has_voices(np.array(shares), k)) == voices


def test_an_empty_mixture_passes_any_minimum() -> None:
    assert has_voices(np.zeros(3), 3)


def cohort(count: int, examples: list[int] | None = None, newcomer: bool = False) -> Cohort:
    modules = modules_of({"l0.q.A": (2, 5), "l0.q.B": (4, 2)})
    counts = examples or [10] * count
    sketch = Sketch(np.array([1, 0, 0, 0], np.float32))
    return Cohort(
        [
            ClientFacts(
                f"c{i}", "m", None, modules, None if newcomer and i == 0 else 0, n, sketch, "m",
                not (newcomer and i == 0),
            )
            for i, n in enumerate(counts)
        ],
        0.5,
    )  # fmt: skip


def served_weights(name: str, members: Cohort, least: int) -> np.ndarray[Any, Any]:
    strategy = make(name, {})
    weights = require_voices(strategy.weigh(members), least, common=strategy.options.base_delta)
    return weights.of_module("l0.q")


@every_strategy
def test_members_with_too_few_voices_keep_their_update(name: str) -> None:
    for count, least in product(range(1, 5), range(1, 5)):
        members = cohort(count)
        rows = served_weights(name, members, least)
        np.testing.assert_allclose(rows.sum(axis=1), 1)
        if count - 1 >= least:
            np.testing.assert_array_equal(rows, make(name, {}).weigh(members).of_module("l0.q"))
        elif least > 1:
            np.testing.assert_array_equal(rows, np.eye(count))


@every_strategy
def test_newcomers_with_too_few_voices_get_zeros(name: str) -> None:
    if make(name, {}).options.base_delta:
        return  # its newcomers begin with what all have in common
    for count, least, heard in ((3, 1, True), (3, 2, True), (3, 3, False), (2, 2, False), (2, 1, True)):
        row = served_weights(name, cohort(count, newcomer=True), least)[0]
        assert row.sum() == (pytest.approx(1) if heard else 0), (count, least)


@pytest.mark.parametrize("name", ["fedavg", "flora", "lora_fair"])
def test_a_dominant_member_counts_as_one_voice(name: str) -> None:
    rows = served_weights(name, cohort(4, [100_000, 10, 10, 10]), 2)
    alone = [bool((rows[i] == np.eye(4)[i]).all()) for i in range(4)]
    assert alone == ([True] * 4 if name == "flora" else [False, True, True, True])


def test_relevance_reports_show_too_few_voices() -> None:
    members, strategy = cohort(2), make("fedavg", {})
    weighing = strategy.weigh(members)
    shown = require_voices(weighing, 2, common=False).report(None, weighing)
    np.testing.assert_array_equal(shown.served, np.eye(2))
    np.testing.assert_array_equal(shown.reductions, [[0, WeightReduction.FEW], [WeightReduction.FEW, 0]])
    assert np.isnan(shown.agreement).all()
