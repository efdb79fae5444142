"""Trackers record all steps and rounds of an agent in its own folder, and no text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client_agent.daemon import run
from client_agent.errors import SettingsUnusable
from client_agent.rounds.steps import take_part
from client_agent.session import open_participant
from client_agent.settings import read_settings
from tests.scene.agent_commands import tessera
from tests.scene.agents import alone_plan, checked, limited_sleep, next_brief, start_alone
from tests.scene.coordinator import Served
from tests.scene.silo_config import config
from tests.scene.tracker_records import in_new_process, recorded, recorded_by_trackio

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, whose imports warn


def with_trackers(folder: Path, line: str = 'report_to = ["tensorboard"]', **changes: str) -> Path:
    file = config(folder, **changes)
    file.write_text(f"{file.read_text()}{line}\n")
    return file


@pytest.mark.slow
def test_tracker_run_continues_after_a_restart(served: Served, tmp_path: Path) -> None:
    federation_id, token = start_alone(served)
    settings = read_settings(with_trackers(tmp_path, url=served.url))
    with open_participant(settings, (token, "aster")) as participant:
        take_part(participant, next_brief(participant))
    with open_participant(settings) as participant:
        run(participant, limited_sleep(500))
        sizes = [len(folder.read("update.body")) for folder in participant.workspace.rounds.newest_first()]
    values = recorded(tmp_path / "state" / "trackers")
    assert [step for step, _ in values["train/loss"]] == [1, 2, 3, 4]
    assert all(rate > 0 for _, rate in values["train/learning_rate"])
    assert all(speed > 0 for _, speed in values["train/tokens_per_second"])
    assert values["update/bytes"] == [(1, sizes[1]), (2, sizes[0])]
    assert [number for number, _ in values["round/seconds"]] == [1, 2]
    for side in ("served", "trained"):
        shown = served.rounds(federation_id)
        losses = [r["clients"][0]["scores"][side]["loss"]["value"] for r in shown]
        assert [loss for _, loss in values[f"{side}/loss"]] == pytest.approx(losses)
    content = b"".join(events.read_bytes() for events in tmp_path.rglob("events.*"))
    for row in map(json.loads, Path(settings.train).read_text().splitlines()):
        assert not any(str(text).encode() in content for text in row.values() if len(str(text)) > 4)


def train(file: Path) -> None:
    plan = file.parent / "plan.json"
    planned: dict[str, Any] = {"name": "alone"} | alone_plan(rounds={"total": 1, "min_clients": 1})
    plan.write_text(json.dumps(planned))
    done = tessera("train", "--config", file, "--plan", plan)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_trackio_has_the_steps_of_a_silo(tmp_path: Path) -> None:
    in_new_process(train, with_trackers(tmp_path, 'report_to = ["trackio"]'))
    ((_, rows),) = recorded_by_trackio(tmp_path / "state" / "trackers" / "trackio", "alone").values()
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
    assert [row["step"] for row in rows if "trained/loss" in row] == [1]


def test_training_alone_is_recorded(tmp_path: Path) -> None:
    train(with_trackers(tmp_path))
    values = recorded(tmp_path / "state" / "trackers")
    assert [step for step, _ in values["train/loss"]] == [1, 2]
    assert len(values["trained/loss"]) == 1


def test_missing_tracker_library_is_an_early_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.trackers.options.find_spec", lambda name: None)
    file = with_trackers(tmp_path)
    error = r"tensorboard is not installed.*pip install '\.\[tensorboard\]'"
    with (
        pytest.raises(SettingsUnusable, match=error),
        open_participant(read_settings(file), ("token", "aster")),
    ):
        pass
    finding = checked(file)["trackers"]
    assert not finding.passed
    assert "tensorboard is not installed" in finding.detail


def test_options_of_trackers_fit_each_other(tmp_path: Path) -> None:
    file = with_trackers(tmp_path, 'report_to = ["tensorboard"]\nmlflow_uri = "https://mlflow.example.org"')
    with pytest.raises(SettingsUnusable, match='report_to lacks "mlflow"'):
        read_settings(file)


def test_check_names_the_server_of_tracked_values(tmp_path: Path) -> None:
    lines = 'report_to = ["tensorboard", "mlflow"]\nmlflow_uri = "https://mlflow.example.org"'
    assert checked(with_trackers(tmp_path, lines))["trackers"].detail == (
        "tensorboard, mlflow: values go to https://mlflow.example.org"
    )
