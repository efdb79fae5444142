"""The rule by which two experts are equivalent: a bound of what each in the other's place costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from coordinator.experts.equivalence import MARGIN, Cost, costs_of, equivalent_pairs, upper_bound
from schemas.secure_sum.encoding import dequantise, largest_encoded, quantise

STEP = 1 / largest_encoded(16)
UNIT = 2**20


def cost(*differences: float) -> Cost:
    values = np.array(differences)
    return Cost(len(values), float(values.sum()), float(np.square(values).sum()))


def both(*differences: float) -> dict[tuple[int, int], Cost]:
    return {(1, 2): cost(*differences), (2, 1): cost(*differences)}


def is_merged(*differences: float, step: float = STEP) -> bool:
    return (1, 2) in equivalent_pairs(both(*differences), step)


def test_the_bound_is_that_of_students_t() -> None:
    """Known answer: mean .02, s .01, five members; t of four degrees of freedom is 2.132."""
    differences = np.array([0.01, 0.01, 0.02, 0.03, 0.03])
    expected = 0.02 + 2.132 * differences.std(ddof=1) / 5**0.5
    assert upper_bound(cost(*differences), 0.0) == pytest.approx(expected)
    assert upper_bound(cost(*[0.01] * 5), 0.0) == pytest.approx(0.01)


@pytest.mark.parametrize("members", [3, 5, 30])
def test_equal_experts_are_equivalent_at_any_size(members: int) -> None:
    assert is_merged(*[0.0] * members)
    assert is_merged(*[-0.3] * members)


@pytest.mark.parametrize("members", [3, 5, 30])
def test_experts_of_two_tasks_are_not_equivalent(members: int) -> None:
    assert not is_merged(*np.linspace(0.3, 0.9, members))


def test_few_noisy_members_do_not_merge_experts() -> None:
    """A mean of .01 is far from significant with three members, and no evidence of equivalence either."""
    noisy = [-0.04, 0.01, 0.06]
    assert upper_bound(cost(*noisy), STEP) > 4 * MARGIN
    assert not is_merged(*noisy)
    assert is_merged(*(noisy * 20))  # sixty members know the mean well


def test_members_of_both_experts_must_agree() -> None:
    costs = {(1, 2): cost(0.0, 0.0, 0.0), (2, 1): cost(0.5, 0.4, 0.6)}
    assert equivalent_pairs(costs, STEP) == {}
    assert equivalent_pairs({(1, 2): cost(0.0, 0.0, 0.0)}, STEP) == {}  # nobody measured the other way


def test_an_unused_expert_has_no_members_to_ask() -> None:
    costs = {(2, 1): cost(0.0, 0.0, 0.0), (2, 3): cost(0.5, 0.5, 0.5)}
    assert list(equivalent_pairs(costs, STEP, {1, 3})) == [(1, 2)]
    assert equivalent_pairs(costs, STEP, {3}) == {}


def test_rounding_of_8_bits_is_counted_as_noise() -> None:
    """Sums of squares are too coarse there to know that five members agree."""
    coarse = 1 / largest_encoded(8)
    assert not is_merged(*[0.0] * 5, step=coarse)
    assert is_merged(*[0.0] * 60, step=coarse)


@pytest.mark.parametrize("bits", [8, 16])
def test_encoded_differences_rarely_pass_by_rounding(bits: int) -> None:
    """Costs of twice the margin, whose spread the rounding could hide."""
    rng = np.random.default_rng(0)
    merged = 0
    for _ in range(200):
        values = np.clip(rng.normal(2 * MARGIN, 0.02, 6), -1, 1).astype(np.float32)
        total = sum(summed(float(value), bits) for value in values)
        costs = costs_of(1, [2], dequantise(total, UNIT, bits).tolist(), 3)  # type: ignore[arg-type]
        merged += upper_bound(costs[1, 2], 1 / largest_encoded(bits)) <= MARGIN
    assert merged <= 2


def summed(difference: float, bits: int) -> np.ndarray:
    values = np.array([1.0, difference, difference**2], np.float32)
    return quantise(values, UNIT, bits).astype(np.int64)


@pytest.mark.parametrize("members", [1.0, 2.0])
def test_costs_of_fewer_than_k_min_members_are_dropped(members: float) -> None:
    assert costs_of(1, [2], [members, 0.0, 0.0], 3) == {}
    assert costs_of(1, [2, 4], [3.0, 0.1, 0.2, 0.3, 0.4], 3) == {
        (1, 2): Cost(3, 0.1, 0.3),
        (1, 4): Cost(3, 0.2, 0.4),
    }
    assert costs_of(1, [2], [1.0, 0.0, 0.0], 1) == {}  # one member has no spread


@pytest.mark.parametrize(
    "values",
    [
        [5.4, 0.0, 0.0],  # no whole number of members
        [5.0, 0.5, 0.0],  # squares below the square of the mean
        [5.0, -4.0, -3.0],
        [5.0, 0.0, 9.0],
    ],
)
def test_impossible_sums_merge_nothing(values: Sequence[float]) -> None:
    costs = costs_of(1, [2], values, 3)
    assert all(upper_bound(cost, STEP) == inf for cost in costs.values())
