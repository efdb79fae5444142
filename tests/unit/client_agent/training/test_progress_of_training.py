"""Progress of training: a bar in a terminal, a few lines in logs."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from client_agent.training.loop import Step
from client_agent.training.progress import TrainingProgress


def steps(total: int) -> list[Step]:
    return [Step(n, total, 2.0 / n, 100 * n, 0.5 * n) for n in range(1, total + 1)]


def test_log_shows_loss_speed_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with TrainingProgress("round 3", Console(file=io.StringIO(), force_terminal=False)) as progress:
        for step in steps(20):
            progress(step)
    assert len(caplog.messages) == 5
    assert caplog.messages[0] == "round 3: step 4/20, loss 0.500, 200 tokens/s, 8 s left"
    assert caplog.messages[-1].startswith("round 3: step 20/20")


def test_terminal_shows_a_bar_without_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    screen = io.StringIO()
    with TrainingProgress("round 3", Console(file=screen, force_terminal=True, width=120)) as progress:
        for step in steps(4):
            progress(step)
    assert "4/4" in screen.getvalue()
    assert "loss 0.500" in screen.getvalue()
    assert "200 tokens/s" in screen.getvalue()
    assert not caplog.messages
