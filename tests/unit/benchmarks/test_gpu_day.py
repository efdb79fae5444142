"""The day on a GPU: its order, its end, and each way of a training step, at the smallest size."""

from __future__ import annotations

import math
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import step_ways
from benchmarks.gpu_day import Step, _run, played, row_of, steps
from benchmarks.random_llama import Size
from benchmarks.whole_federation import Failed, finish
from schemas.messages.federations import TrainingPlan
from tests.scene.waiting import wait_until

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


@pytest.mark.parametrize(
    ("last_line", "state"),
    [
        ("5 skipped in 0.10s", "failed: no test passed: 5 skipped in 0.10s"),
        ("1 passed, 4 skipped in 0.10s", "ok"),
    ],
)
def test_skipped_tests_fail_their_step(
    last_line: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.py").write_text(f"print({last_line!r})", "utf-8")  # in place of the real one
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (outcome,) = played([Step("tests", ("pytest",))], time.monotonic() + 600, has_gpu=True)
    assert outcome.state == state


def test_end_of_time_ends_grandchildren(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    lines = (
        "import pathlib, subprocess",
        "child = subprocess.Popen(['sleep', '600'])",
        f"pathlib.Path({str(started)!r}).write_text(str(child.pid))",
        "child.wait()",
    )
    (tmp_path / "sleeping_parent.py").write_text("\n".join(lines), "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _run(Step("sleeps", ("sleeping_parent",)), 2.0).state == "ended: the time is over"
    grandchild = int(started.read_text("utf-8"))
    wait_until(lambda: not _is_alive(grandchild))


def _is_alive(process: int) -> bool:
    # Nobody may be there to reap an orphan.
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def test_failed_command_ends_the_others() -> None:
    commands = (["sleep", "600"], ["sh", "-c", "echo lost >&2; exit 3"])
    pipe = subprocess.PIPE
    waiting, failing = (
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for command in commands
    )
    with pytest.raises(Failed, match="lost"):
        finish([waiting, failing])
    assert waiting.wait() < 0
    with subprocess.Popen(["echo", "done"], stdout=pipe, stderr=pipe, text=True) as ended:
        assert finish([ended]) == ["done\n"]


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
