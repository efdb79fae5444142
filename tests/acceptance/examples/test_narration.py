"""The demo's lines: the minutes left, and the shown part of the agents' logs."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from examples.demo import federated, narration
from examples.demo.cast import Cast
from examples.demo.narration import Narrator, logged, rounds_done
from examples.demo_tiny.silos import MODELS
from studies import interrupts
from studies.remaining_time import Schedule, Stage, every_minute


def test_minutes_left_follow_the_measured_pace() -> None:
    now = [0.0]
    schedule = Schedule([Stage("model", 60), Stage("training", 240)], lambda: now[0])
    assert schedule.opening() == "2 stages (model, training), about 5 minutes on two cores"
    now[0] = 10.0
    assert schedule.line() == "stage 1 of 2 (model): about 5 minutes left"
    now[0] = 300.0  # a slow download says nothing about training
    schedule.enter("training")
    assert schedule.line() == "stage 2 of 2 (training): about 4 minutes left"
    now[0] = 541.0
    assert schedule.line() == "stage 2 of 2 (training): takes longer than estimated"
    now[0] = 400.0  # neither do imports
    schedule.reach(0.1)
    assert schedule.line() == "stage 2 of 2 (training): about 4 minutes left"
    now[0] = 500.0  # 100 seconds for what 48 were planned
    schedule.reach(0.3)
    schedule.reach(0.2)
    slow = ", as this machine takes 1.8 times as long as two quiet cores"
    assert schedule.line() == f"stage 2 of 2 (training): about 6 minutes left{slow}"
    now[0] = 800.0  # longer than the step before: the pace follows before the step ends
    assert schedule.seconds_left() > 600
    now[0] = 900.0
    schedule.reach(1.0)
    assert "about a minute left" in schedule.line()
    now[0] = 1200.0
    assert schedule.line() == "stage 2 of 2 (training): takes longer than estimated"


def test_time_left_is_printed_repeatedly() -> None:
    lines: list[str] = []
    printed = Event()
    with every_minute(lambda: (lines.append("left"), len(lines) > 1 and printed.set()), seconds=0.01):
        assert printed.wait(5)


def test_a_common_warning_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(Schedule([Stage("training", 60)]))
    for name in ("elmford", "greyhaven"):
        narrator.log(name, ["0 validation examples are too few to choose", "round 1: delivered"], 9)
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [(name.strip(), text) for name, text in lines] == [
        ("all silos", "0 validation examples are too few to choose"),
        ("elmford", "round 1: delivered"),
        ("greyhaven", "round 1: delivered"),
    ]


def test_agent_logs_are_shortened() -> None:
    lines = (
        "2026-01-01 10:00:00,000 INFO     round 1: step 3/8, loss 2.0, 9 tokens/s, 5 s left\n"
        "2026-01-01 10:00:01,000 INFO     round 1: step 4/8, loss 1.9, 9 tokens/s, 4 s left\n"
        "error: something else\n"
        "2026-01-01 10:00:02,000 WARNING  scores not sent\n"
    )
    assert logged(lines) == ["round 1: step 4/8, loss 1.9, 9 tokens/s, 4 s left", "scores not sent"]


def test_completed_rounds_follow_from_logged_steps() -> None:
    lines = (
        "2026-01-01 10:00:00,000 INFO     round 1: step 4/8, loss 2.0, 9 tokens/s, 5 s left\n"
        "2026-01-01 10:00:01,000 INFO     round 1: update of 9 bytes delivered\n"
        "2026-01-01 10:00:02,000 INFO     round 2: step 2/8, loss 1.9, 9 tokens/s, 4 s left\n"
    )
    assert list(rounds_done(lines)) == [0.5, 1.25]


def test_interrupted_narrator_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrator = Narrator(Schedule([Stage("training", 60)]))
    monkeypatch.setattr(interrupts, "_is_stopping", True)
    with narrator.counting_down():
        narrator.step("federation: round 1 is published")
    assert capsys.readouterr().out == ""


def test_silence_ends_with_the_newest_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    narrator = Narrator(Schedule([Stage("training", 60)]))
    narrator.step("federation: round 1: 2 of 2 silos train")
    narrator.break_silence()
    assert len(capsys.readouterr().out.splitlines()) == 1
    monkeypatch.setattr(narration, "_SILENT_SECONDS", 0.0)
    narrator.break_silence()
    (tmp_path / "elmford").mkdir()
    (tmp_path / "elmford" / "agent.log").write_text(
        "2026-01-01 10:00:00,000 INFO     round 1: step 1/8, loss 2.0, 9 tokens/s, 5 s left\n"
    )
    with narrator.following(tmp_path, ["elmford"], 1):
        pass
    narrator.break_silence()
    assert [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "elmford: round 1: step 1/8",
    ]


@pytest.mark.parametrize(
    ("number", "joined", "arrived", "state", "words"),
    [
        (1, 2, 0, "open", "round 1: 2 of 3 silos (saltmere joins after it) train"),
        (1, 3, 1, "collecting", "round 1: 1 of 3 silos (saltmere joins after it) have delivered"),
        (
            1,
            3,
            3,
            "closing",
            "round 1: all 3 silos (saltmere joins after it) have delivered; the updates are",
        ),
        (1, 3, 3, "published", "round 1 is published: 3 updates are mixed for each silo"),
        (2, 0, 0, "open", "round 2: 0 of 4 silos train"),
    ],
)
def test_the_state_of_a_round_names_expected_silos(
    tmp_path: Path, number: int, joined: int, arrived: int, state: str, words: str
) -> None:
    (tmp_path / "smollm2").symlink_to(MODELS["S"])
    newest = {"round": number, "state": state, "counts": {"joined": joined, "arrived": arrived}}
    assert federated.state_of(newest, Cast.of(tmp_path, seed=0)).startswith(words)
