"""The learning rate over the steps of all rounds."""

from __future__ import annotations

from typing import Literal

import pytest

from client_agent.training.optimiser import learning_rate_factor
from schemas.messages.federations import TrainingPlan


def factors(plan: TrainingPlan, steps: tuple[int, ...], total: int = 10) -> list[float]:
    return [learning_rate_factor(step, plan, total) for step in steps]


def test_warm_up_is_linear_over_the_whole_federation() -> None:
    assert factors(TrainingPlan(warmup_steps=2), (0, 1, 2, 9)) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert factors(TrainingPlan(steps=5, warmup_steps=20), (0, 10, 20, 99), 100) == pytest.approx(
        [1 / 21, 11 / 21, 1, 1]
    )


def test_decays_end_at_zero_or_the_floor() -> None:
    assert factors(TrainingPlan(schedule="linear"), (0, 5, 9)) == pytest.approx([1, 0.5, 0.1])
    assert factors(TrainingPlan(schedule="linear", schedule_floor=0.2), (0, 5, 10)) == pytest.approx(
        [1, 0.6, 0.2]
    )
    assert factors(TrainingPlan(schedule="cosine"), (0, 5)) == pytest.approx([1, 0.5])
    assert 0 < factors(TrainingPlan(schedule="cosine"), (9,))[0] < 0.05
    assert factors(TrainingPlan(schedule="cosine", schedule_floor=0.1), (10,)) == pytest.approx([0.1])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_steps_beyond_the_total_stay_at_the_floor(schedule: Literal["linear", "cosine"]) -> None:
    plan = TrainingPlan(schedule=schedule, schedule_floor=0.3)
    assert factors(plan, (10, 15)) == pytest.approx([0.3, 0.3])
