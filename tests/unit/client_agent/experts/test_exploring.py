"""Private draws of specialists: random at first, then the best, with their turns of training."""

from __future__ import annotations

from collections import Counter

import pytest

from client_agent.experts.exploration import Turn, drawn, temperature, turns
from client_agent.experts.responsibilities import uniform
from schemas.maths.bank import exploring_rounds

SPECIALISTS = (1, 2, 3, 4, 5, 6)


def secret(number: int) -> str:
    return f"{number:064x}"


def test_equal_experts_are_drawn_evenly_by_clients() -> None:
    """A greedy choice among equal losses puts all clients on one expert for ever (row 13)."""
    r = uniform(SPECIALISTS)
    draws = [drawn(r, 2, 1.0, secret=secret(n), round_number=1) for n in range(300)]
    assert all(len(set(draw)) == 2 for draw in draws)
    counts = Counter(expert for draw in draws for expert in draw)
    assert set(counts) == set(SPECIALISTS)
    assert max(counts.values()) < 1.5 * min(counts.values())
    settled = [drawn(r, 1, 0.0, secret=secret(n), round_number=9) for n in range(300)]
    assert len({draw[0] for draw in settled}) == len(SPECIALISTS)  # ties, too


def test_draws_follow_responsibilities_and_the_round() -> None:
    r = {1: 0.9, 2: 0.05, 3: 0.05}
    first = Counter(drawn(r, 1, 1.0, secret=secret(n), round_number=1)[0] for n in range(400))
    assert 0.85 < first[1] / 400 < 0.95
    rounds = [drawn(uniform(SPECIALISTS), 2, 1.0, secret=secret(1), round_number=n) for n in range(1, 9)]
    assert len(set(rounds)) > 3
    assert rounds[0] == drawn(uniform(SPECIALISTS), 2, 1.0, secret=secret(1), round_number=1)


def test_newborn_expert_leaves_other_draws_unchanged() -> None:
    for number in range(20):
        draw = drawn(uniform((1, 2, 3)), 3, 1.0, secret=secret(number), round_number=4)
        wider = drawn(uniform((1, 2, 3, 7)), 4, 1.0, secret=secret(number), round_number=4)
        assert [expert for expert in wider if expert != 7] == list(draw)


def test_best_specialists_are_chosen_after_exploration() -> None:
    assert drawn({1: 0.2, 2: 0.5, 3: 0.0, 4: 0.3}, 2, 0.0, secret=secret(0), round_number=20) == (2, 4)
    assert drawn({3: 0.0, 4: 0.0}, 1, 1.0, secret=secret(0), round_number=20)


def test_exploration_temperature_falls_to_zero() -> None:
    assert [temperature(n, 4) for n in (1, 2, 3, 4, 5, 9)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert temperature(1, 0) == 0.0
    assert [exploring_rounds(None, n) for n in (1, 5, 12, 100)] == [0, 2, 6, 10]
    assert exploring_rounds(3, 100) == 3


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_drawn_specialists_share_the_steps(steps: int) -> None:
    shared = turns((4, 2), steps, exploring=True)
    assert sum(turn.steps for turn in shared) == steps
    assert [turn.specialists for turn in shared] == [(4,), (2,)][: min(2, steps)]
    assert turns((4, 2), steps, exploring=False) == [Turn((4, 2), steps)]
    assert turns((4,), steps, exploring=True) == [Turn((4,), steps)]
