"""Studies with trackers: one run per method and seed, with the values of all clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from studies import simulate
from studies.compare import Comparison
from studies.study import read_study
from tests.scene.studies import write_study
from tests.scene.tracker_records import in_new_process, recorded, recorded_by_trackio

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, whose imports warn


@pytest.mark.slow
def test_tracked_runs_have_steps_and_rounds_of_clients(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, more='report_to = ["tensorboard"]'))
    report = simulate(study, methods=["local", "fedavg"], seeds=[0], out=tmp_path / "out", workers=1)
    assert not report.missing
    runs = tmp_path / "out" / "trackers" / "tensorboard" / "out"
    assert {folder.name for folder in runs.iterdir()} == {"local__seed_0", "fedavg__seed_0"}
    for folder in runs.iterdir():
        values = recorded(folder)
        for client in ("aster", "birch"):
            assert [step for step, _ in values[f"{client}/train/loss"]] == [1, 2, 3, 4]
            assert [number for number, _ in values[f"{client}/trained/loss"]] == [1, 2]
        for number, mean in values["mean/trained/loss"]:
            losses = [dict(values[f"{client}/trained/loss"])[number] for client in ("aster", "birch")]
            assert mean == pytest.approx(sum(losses) / 2, rel=1e-5)
    assert all(size > 0 for _, size in recorded(runs / "fedavg__seed_0")["bytes/up"])


def compare(file: Path) -> None:
    report = simulate(read_study(file), methods=["local"], seeds=[0], out=file.parent / "out", workers=1)
    assert not report.missing


@pytest.mark.slow
def test_trackio_has_the_runs_of_a_study(tmp_path: Path) -> None:
    in_new_process(compare, write_study(tmp_path, more='report_to = ["trackio"]'))
    runs = recorded_by_trackio(tmp_path / "out" / "trackers" / "trackio", "out")
    ((name, (facts, rows)),) = runs.items()
    assert (name, facts["method"], facts["seed"]) == ("local, seed 0", "local", 0)
    assert [row["step"] for row in rows if "aster/train/loss" in row] == [1, 2, 3, 4]


def test_a_missing_tracker_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = read_study(write_study(tmp_path, more='report_to = ["wandb"]'))
    monkeypatch.setattr("schemas.trackers.options.find_spec", lambda name: None)
    with pytest.raises(StudyUnusable, match="report_to: wandb is not installed"):
        Comparison.planned(study, tmp_path / "out", ["local"], None)
