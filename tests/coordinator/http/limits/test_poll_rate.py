"""Who polls at a reasonable pace is never told to wait."""

from __future__ import annotations

import pytest

from coordinator.errors import RateLimited
from coordinator.http.limits.poll_rate import BURST, PollRate


def test_ten_at_once_and_one_a_second_after_that() -> None:
    now = [100.0]
    polls = PollRate(1.0, clock=lambda: now[0])
    for _ in range(BURST):
        polls.take("a")
    with pytest.raises(RateLimited) as limited:
        polls.take("a")
    assert 1 <= int(limited.value.fields()["Retry-After"]) <= 6
    polls.take("b")
    for _ in range(100):
        now[0] += 1.0
        polls.take("a")
    with pytest.raises(RateLimited):
        polls.take("a")
    now[0] += 3600.0
    for _ in range(BURST):
        polls.take("a")
    with pytest.raises(RateLimited):
        polls.take("a")


def test_asking_in_vain_costs_nothing_more() -> None:
    now = [0.0]
    polls = PollRate(1.0, clock=lambda: now[0])
    for _ in range(BURST):
        polls.take("a")
    for _ in range(50):
        with pytest.raises(RateLimited):
            polls.take("a")
    now[0] = 1.0
    polls.take("a")
