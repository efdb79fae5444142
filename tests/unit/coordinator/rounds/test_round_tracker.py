"""A coordinator with trackers records each round that it publishes, and only means that members see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.errors import SettingsUnusable
from coordinator.server import load_settings
from tests.scene.coordinator import start
from tests.scene.rounds import deliver, join, plan, running, scored, send_scores, values
from tests.scene.tracker_records import recorded
from tests.scene.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, whose imports warn


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "shows"), [(3, True), (2, False)])
def test_trackers_record_the_means_that_members_see(
    clients: int, shows: bool, tmp_path: Path, fresh_database: Callable[[str], str]
) -> None:
    served = start(
        fresh_database("sqlite"), tick_seconds=0.02, report_to="tensorboard", tracker_folder=str(tmp_path)
    )
    try:
        rounds = {"total": 2, "min_clients": clients, "collect_seconds": 600}
        federation_id, silos = running(served, clients, **plan(rounds=rounds))
        for number in (1, 2):
            for silo in silos:
                join(silo, number)
            for silo in silos:
                assert deliver(silo, number, values(1.0)).status_code in (200, 201)
            wait_until(lambda n=number: served.round_state(federation_id, n) == "published")
            for place, silo in enumerate(silos):
                assert send_scores(silo, number, scored({"loss": 0.5 + place}))[0] == 204
        shown = served.rounds(federation_id)
    finally:
        served.stop()
    recorded_values = recorded(tmp_path)
    by_number = sorted(shown, key=lambda view: view["round"])
    assert recorded_values["members/arrived"] == [(1, clients), (2, clients)]
    assert recorded_values["bytes/up"] == [(view["round"], view["bytes"]["up"]) for view in by_number]
    assert {"seconds/collecting", "seconds/aggregating", "bytes/down"} <= recorded_values.keys()
    assert recorded_values.get("scores/loss") == ([(1, 1.5), (2, 1.5)] if shows else None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"report_to": "tensorbord"},
            "'tensorbord' is no tracker; write tensorboard, mlflow",
        ),
        (
            {"report_to": "tensorboard", "mlflow_uri": "https://mlflow.example.org"},
            'report_to lacks "mlflow"',
        ),
        ({"report_to": "wandb", "wandb_url": "api.wandb.ai"}, "is not an address"),
    ],
)
def test_options_of_trackers_are_checked(
    options: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in options.items():
        monkeypatch.setenv(f"TESSERA_{name.upper()}", value)
    with pytest.raises(SettingsUnusable, match=f"TESSERA_REPORT_TO: .*{reason}"):
        load_settings()


def test_a_missing_tracker_library_is_a_settings_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_REPORT_TO", "tensorboard, mlflow")
    monkeypatch.setattr("schemas.trackers.options.find_spec", lambda name: None)
    with pytest.raises(SettingsUnusable, match=r"TESSERA_REPORT_TO: tensorboard is not installed"):
        load_settings()
