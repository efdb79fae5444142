"""Leads of paired figures: Student's t test, and no pass by one clear task among few."""

from __future__ import annotations

import random

import pytest

from schemas.maths.paired_test import lead, spread, upper_tail
from schemas.messages.alignment import LEVEL, Direction, Ending, Start

# One-sided critical values of Student's t, as statistics books print them: degrees, at 5 %, at 1 %.
PRINTED = [
    (1, 6.314, 31.821),
    (2, 2.920, 6.965),
    (3, 2.353, 4.541),
    (4, 2.132, 3.747),
    (5, 2.015, 3.365),
    (6, 1.943, 3.143),
    (9, 1.833, 2.821),
    (30, 1.697, 2.457),
]


@pytest.mark.parametrize(("freedom", "five", "one_percent"), PRINTED)
def test_the_upper_tail_matches_printed_tables(freedom: int, five: float, one_percent: float) -> None:
    assert upper_tail(five, freedom) == pytest.approx(0.05, abs=5e-5)
    assert upper_tail(one_percent, freedom) == pytest.approx(0.01, abs=1e-5)
    assert upper_tail(-five, freedom) == pytest.approx(0.95, abs=5e-5)
    assert upper_tail(0.0, freedom) == 0.5


def test_the_paired_test_has_its_nominal_error_rate() -> None:
    rng = random.Random(0)
    passes = 0
    for _ in range(4000):
        shared = [rng.gauss(0, 3) for _ in range(5)]
        a, b = ([x + rng.gauss(0, 1) for x in shared] for _ in range(2))
        passes += lead(a, over=b).chance < LEVEL
    assert passes / 4000 == pytest.approx(LEVEL, abs=0.012)


def test_a_constant_lead_is_certain() -> None:
    assert lead([2.0, 3.0], over=[1.0, 2.0]).chance == 0
    assert lead([1.0, 2.0], over=[1.0, 2.0]).chance == 1
    assert lead([1.0, 2.0], over=[2.0, 3.0]).chance == 1
    with pytest.raises(ValueError, match="two pairs"):
        lead([1.0], over=[0.0])
    with pytest.raises(ValueError, match="zip"):
        lead([1.0, 2.0], over=[0.0, 0.0, 0.0])


def test_the_spread_is_mean_and_standard_error() -> None:
    assert spread([1.0, 2.0, 3.0]) == pytest.approx((2.0, 3**-0.5))
    assert spread([4.0]) == (4.0, 0.0)


def ending(*losses: float) -> Ending:
    return Ending(loss=list(losses), exact_match=[0.5] * len(losses))


def test_a_direction_passes_only_with_significant_leads() -> None:
    right = ending(0.5, 0.6, 0.4, 0.5, 0.5)
    clear = ending(0.9, 1.1, 0.7, 0.9, 1.0)
    one_task_alone = ending(0.6, 0.7, 0.5, 0.5, 1.5)  # ahead by more than its standard error

    def direction(**others: Ending) -> Direction:
        starts: dict[Start, Ending] = {"zero": clear, "wrong_task": clear, "random_frames": clear}
        return Direction.model_validate(
            {"source": "a-1", "target": "b-1", "learnt": right, "endings": {"right": right} | starts | others}
        )

    assert direction().passed
    for control in ("zero", "wrong_task", "random_frames"):
        weak = direction(**{control: one_task_alone})
        assert not weak.passed
        assert weak.lead_over(control).mean > 1.3 * weak.lead_over(control).error
        assert 0.1 < weak.lead_over(control).chance < 0.2
