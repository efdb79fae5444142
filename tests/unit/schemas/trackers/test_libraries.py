"""Trackers without a server: each library reads its own records."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.trackers import trackers
from schemas.trackers.options import TrackerMissing, TrackerName, TrackerOptions, require_addresses
from schemas.trackers.tracker import TrackedRun
from tests.scene.tracker_records import in_new_process, recorded_by_trackio
from tests.scene.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, whose imports warn

RUN = TrackedRun("federation one/a", "aster", "client-1", {"base model": "tiny-s", "seed": 3})
STEPS = [(1, 2.5), (2, 2.25), (3, 2.0)]


def record(options: TrackerOptions, steps: list[tuple[int, float]] = STEPS) -> None:
    with options.open(RUN) as opened:
        for step, loss in steps:
            opened.log("step", step, {"train/loss": loss, "train/learning_rate": 1e-3})
        opened.named("birch").log("round", 1, {"scores/loss": 1.5, "broken": float("nan")})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limit for closing a tracker, since some libraries load slowly."""
    monkeypatch.setattr(trackers, "_CLOSING_SECONDS", 200.0)


def test_tensorboard_reads_steps_and_rounds(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(TrackerOptions(("tensorboard",), tmp_path))
    events = EventAccumulator(str(tmp_path / "tensorboard" / "federation_one_a" / "aster"))
    events.Reload()
    assert sorted(events.Tags()["tensors"]) == ["birch/scores/loss", "train/learning_rate", "train/loss"]
    losses = [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors("train/loss")]
    assert losses == STEPS
    assert [event.step for event in events.Tensors("birch/scores/loss")] == [1]


@pytest.mark.slow
def test_mlflow_reads_a_run_that_was_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # not the silo's choice: never asked
    options = TrackerOptions(("mlflow",), tmp_path)
    record(options)
    record(options, [(4, 1.75)])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(RUN.project)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("aster", "FINISHED")
    assert run.data.params == {"base model": "tiny-s", "seed": "3"}
    losses = [
        (metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "train/loss")
    ]
    assert losses == [*STEPS, (4, 1.75)]
    assert "birch/scores/loss" in run.data.metrics
    assert "birch/broken" not in run.data.metrics


@pytest.mark.slow
def test_wandb_records_nothing_about_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    record(TrackerOptions(("wandb",), tmp_path))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    # W&B's own process closes the file, and `finish` of its library does not wait for that.
    wait_until(lambda: any(entry.HasField("exit") for entry in wandb_records(file)), seconds=60)
    records = list(wandb_records(file))
    rows = [
        {"".join(item.nested_key) or item.key: item.value_json for item in entry.history.item}
        for entry in records
        if entry.HasField("history")
    ]
    losses = [(int(row["step"]), float(row["train/loss"])) for row in rows if "train/loss" in row]
    assert losses == STEPS
    assert [row["round"] for row in rows if "birch/scores/loss" in row] == ["1"]
    axes = {entry.metric.name: entry.metric.step_metric for entry in records if entry.HasField("metric")}
    assert (axes["train/loss"], axes["birch/scores/loss"]) == ("step", "round")
    content = file.read_bytes()
    kinds = {entry.WhichOneof("record_type") for entry in records}
    assert kinds <= {"run", "header", "footer", "history", "summary", "metric", "telemetry", "exit", "final"}
    for private in (str(Path.cwd()), "site-packages", "pytest", sys.executable):
        assert private.encode() not in content


def wandb_records(file: Path) -> Iterator[Any]:
    """Read W&B's messages from the log of blocks in which it stores them."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, message = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        if place + 7 + size > len(content):
            return  # still being written
        message += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(message)
            message = b""


def record_with_trackio(folder: Path) -> None:
    """Record a run, continue it, and try another folder in the same process."""
    trackers._CLOSING_SECONDS = 200.0
    options = TrackerOptions(("trackio",), folder)
    record(options)
    record(options, [(4, 1.75)])
    record(TrackerOptions(("trackio",), folder / "second"))


@pytest.mark.slow
def test_trackio_reads_a_run_that_was_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "foreign"))  # not the silo's choice
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRACKIO_BUCKET_ID", "somebody/bucket")
    in_new_process(record_with_trackio, tmp_path)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("trackio: values are lost") == 1
    assert f"has loaded trackio with folder {tmp_path / 'trackio'}" in printed.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["trackio"]
    runs = recorded_by_trackio(tmp_path / "trackio", "federation_one_a")
    assert list(runs) == ["aster"]
    facts, rows = runs["aster"]
    assert facts == {"base model": "tiny-s", "seed": 3}
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [*STEPS, (4, 1.75)]
    assert [row["step"] for row in rows if "birch/scores/loss" in row] == [1, 1]
    assert not any("birch/broken" in row for row in rows)


def test_a_missing_library_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.trackers.options.find_spec", lambda name: None)
    with pytest.raises(TrackerMissing, match=r"wandb is not installed.*pip install '\.\[wandb\]'"):
        TrackerOptions(("wandb",), tmp_path).require_installed()


@pytest.mark.parametrize(
    ("report_to", "mlflow_uri", "wandb_url", "reason"),
    [
        (("mlflow", "mlflow"), None, None, "twice"),
        (("tensorboard",), "https://mlflow.example.org", None, 'lacks "mlflow"'),
        (("mlflow",), "runs", None, "neither a server"),
        ((), None, "https://api.wandb.ai", 'lacks "wandb"'),
        (("wandb",), None, "api.wandb.ai", "not an address"),
    ],
)
def test_inconsistent_tracker_options_are_refused(
    report_to: tuple[TrackerName, ...], mlflow_uri: str | None, wandb_url: str | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        require_addresses(report_to, mlflow_uri, wandb_url)


def test_an_unwritable_tracker_folder_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "tensorboard" / "federation_one_a"
    folder.mkdir(parents=True)
    (folder / "aster").touch()  # a file where the run's folder belongs
    record(TrackerOptions(("tensorboard",), tmp_path))
    warnings = [entry.getMessage() for entry in caplog.records if entry.name == "schemas.trackers.trackers"]
    assert len(warnings) == 1
    assert "tensorboard: values are lost" in warnings[0]
