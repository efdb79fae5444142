"""A birth with an invalid sum of weights, which members can cause."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from coordinator.aggregation.bank_round import change_bank
from coordinator.experts.bank import RoundCounts, new_bank
from coordinator.experts.current_bank import CurrentBank
from coordinator.strategies.bank_rules import Rules
from schemas.maths.bank import SHARED
from tests.scene.tensors import filled_tensors

LAYOUT = {"b0.o.P": (2, 2)}


class FakeModel:
    def state(self, expert: int, _: Any) -> dict[str, Any]:
        return filled_tensors(LAYOUT, expert)

    def start(self, _: int) -> dict[str, Any]:
        return {}


class FakeTotal:
    segments = ("P", "new.P", "new.weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def number(self, name: str) -> float:
        assert name == "new.weight"
        return self.weight

    def values(self, _: str, __: int, count: int) -> Any:
        return np.full(count, 2.0)


@pytest.mark.parametrize(("weight", "born"), [(4.0, [3]), (0.0, []), (-1.0, []), (0.01, [])])
def test_a_birth_needs_a_sum_of_weights(weight: float, born: list[int]) -> None:
    rules = Rules(birth_patience=1)
    current = CurrentBank(new_bank(2, rules, 0), rules, {})
    counts = RoundCounts(10, {1: 5, 2: 5}, rejects=4)
    change = change_bank(current, counts, cast(Any, FakeModel()), cast(Any, FakeTotal(weight)), {}, 1, 16)
    assert [event.expert for event in change.outcome.events] == born
    assert list(change.states) == born
    for state in change.states.values():
        np.testing.assert_allclose(state["b0.o.P"], 0.5)
    assert SHARED not in change.states
