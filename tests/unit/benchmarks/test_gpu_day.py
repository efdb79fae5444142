"""The day on a GPU: its order, its end, and each way of a training step, at the smallest size."""

from __future__ import annotations

import math
import time

import pytest
import torch

from benchmarks import step_ways
from benchmarks.gpu_day import Step, played, row_of, steps
from benchmarks.random_llama import Size
from schemas.messages.federations import TrainingPlan

SMALL = Size(64, 128, 2, 4, 2, 256, batch=2, length=32)
PLAN = TrainingPlan(steps=3, batch_size=2, max_length=32, learning_rate=1e-4)
FAILS = Step("fails", ("benchmarks.no_such_module",))


def test_a_day_begins_with_the_tests() -> None:
    names = [step.name for step in steps(["1b", "7b"], "nf4", "cuda")]
    assert names[:4] == ["tests/gpu", "1b: agent", "1b: TRL", "1b: federation"]
    assert len(names) == len(set(names)) == 13


def test_a_day_ends_in_time() -> None:
    outcomes = list(played(steps(["tiny"], "none", "cpu"), time.monotonic(), has_gpu=False))
    assert {outcome.state for outcome in outcomes} == {"skipped: no GPU", "skipped: the time is over"}
    assert all(len(row_of(outcome)) == 7 for outcome in outcomes)


def test_a_failed_step_does_not_end_the_day() -> None:
    outcomes = list(played([FAILS, FAILS], time.monotonic() + 600, has_gpu=False))
    assert [outcome.state.partition(":")[0] for outcome in outcomes] == ["failed", "failed"]
    assert "no_such_module" in outcomes[0].state


def test_a_day_skips_steps_without_their_library() -> None:
    step = Step("fused", FAILS.arguments, libraries=("json", "no_such_library"))
    (outcome,) = played([step], time.monotonic() + 600, has_gpu=False)
    assert outcome.state == "skipped: no_such_library is not installed"


def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(step_ways.LIBRARIES, "liger", ("no_such_library",))
    monkeypatch.setattr("sys.argv", ["step_ways", "--way", "liger"])
    with pytest.raises(SystemExit) as ended:
        step_ways.main()
    assert ended.value.code == step_ways.MISSING
    assert "no_such_library is not installed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_agent_and_trl_train_the_same() -> None:
    pytest.importorskip("trl")
    agent, trl = (
        step_ways.measure(way, SMALL, PLAN, torch.device("cpu"), "none", "sdpa", 4)
        for way in ("agent", "trl")
    )
    assert math.isclose(agent["loss"], trl["loss"], rel_tol=0.02)
    assert min(agent["ms"], trl["ms"], agent["peak_mib"], trl["peak_mib"]) > 0
