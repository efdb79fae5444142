"""`tessera agent status`: the running agent, its coordinator's answer, and its past rounds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.errors import Stopped
from client_agent.identity.agent_folder import exclusive
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import BRIEF, CLOSED, RECEIPT, TRAINED, UPDATE
from tests.scene.agent_commands import tessera
from tests.scene.agents import Enrolled, alone_plan, limited_sleep
from tests.scene.coordinator import Served
from tests.scene.silo_config import config, config_beside


def status(file: Path, *, exit_code: int) -> dict[str, Any]:
    done = tessera("status", "--config", file, "--json")
    assert done.exit_code == exit_code, done.output
    shown: dict[str, Any] = json.loads(done.stdout)
    assert shown["well"] == (exit_code == 0)
    return shown


def test_status_follows_an_agent_from_enrolment_to_end(
    served: Served, participant: Enrolled, tmp_path: Path
) -> None:
    file = config_beside(tmp_path, url=served.url)
    federation_id = served.federation(**alone_plan())
    agent = participant(federation_id)
    waiting = status(file, exit_code=1)
    assert waiting["next_command"] == "tessera agent run"
    assert f"next: tessera agent run --config {file}\n" in tessera("status", "--config", file).stdout
    assert (waiting["name"], waiting["client"], waiting["federation"]) == (
        "aster",
        agent.session.client_id,
        federation_id,
    )
    assert (waiting["running"], waiting["rounds"]) == (False, [])
    assert waiting["coordinator"] == "nothing to do for this client now"
    with exclusive(tmp_path):
        assert status(file, exit_code=0)["running"]
    served.start_federation(federation_id)
    with exclusive(tmp_path):
        assert status(file, exit_code=0)["coordinator"].startswith("round 1 is ")
        run(agent, limited_sleep(500))
    ended = status(file, exit_code=0)
    assert (ended["running"], ended["coordinator"]) == (False, "the federation is finished")
    assert [entry["round"] for entry in ended["rounds"]] == [2, 1]
    view = served.admin.get(f"/v1/federations/{federation_id}/rounds/2").json()["clients"][0]
    assert ended["rounds"][0] == {
        "round": 2,
        "state": "update and scores delivered",
        "served": view["scores"]["served"]["loss"]["value"],
        "trained": view["scores"]["trained"]["loss"]["value"],
        "personal": view["scores"]["kept"],
        "scores": view["scores"][view["scores"]["kept"]],
        "learning_rate": 0.01,
        "bytes_sent": len(agent.workspace.rounds.open(2).read(UPDATE)),
        "gates": None,
    }
    assert ended["learning_rate"] is None  # the plan names the rate
    assert ended["next_command"] is None
    assert ended["final_scores"] == view["scores"]["final"]
    shown = tessera("status", "--config", file).stdout
    for part in (
        "aster",
        "not running",
        "federation is finished",
        "perplexity",
        f"{ended['rounds'][0]['bytes_sent']:,}",
    ):
        assert part in shown, part
    # As after the coordinator was switched off: the final weights are stored.
    assert status(config_beside(tmp_path), exit_code=1)["next_command"] is None


def test_status_shows_the_gate_of_each_block(served: Served, started: Enrolled, tmp_path: Path) -> None:
    rounds = {"total": 1, "min_clients": 1}
    participant = started(
        **alone_plan(rounds=rounds, strategy={"name": "fedmosaic", "options": {"mix": "gate"}})
    )
    run(participant, limited_sleep(500))
    trained = TrainingResult.read(participant.workspace.rounds.open(1).path / TRAINED)
    file = config_beside(tmp_path, url=served.url)
    gates = status(file, exit_code=0)["rounds"][0]["gates"]
    of_first = [1 / (1 + np.exp(-values)) for name, values in trained.private.items() if name[:3] == "b0."]
    assert gates["b0"] == pytest.approx(np.mean(of_first))
    assert list(gates) == sorted(gates)
    assert "share of the served weights after" in tessera("status", "--config", file).stdout


def test_status_gives_the_reason_of_a_closed_round(served: Served, started: Enrolled, tmp_path: Path) -> None:
    rounds = {"total": 1, "min_clients": 1, "collect_seconds": 3.0}
    participant = started(**alone_plan(limits={"max_norm": 1e-9}, rounds=rounds))

    def sleep(_: float) -> None:
        if any(folder.has(CLOSED) for folder in participant.workspace.rounds.newest_first()):
            raise Stopped
        time.sleep(0.02)

    with pytest.raises(Stopped):
        run(participant, sleep)
    file = config_beside(tmp_path, url=served.url)
    (closed,) = [entry for entry in status(file, exit_code=1)["rounds"] if "closed" in entry["state"]]
    assert "norm-exceeded" in closed["state"]
    assert closed["bytes_sent"] is None


def test_unreachable_coordinator_or_revoked_client_fails_status(
    served: Served, participant: Enrolled, tmp_path: Path
) -> None:
    federation_id = served.federation(**alone_plan())
    agent = participant(federation_id)
    with exclusive(tmp_path):
        gone = status(config_beside(tmp_path), exit_code=1)
        assert "did not answer" in gone["coordinator"]
        served.admin.delete(f"/v1/federations/{federation_id}/clients/{agent.session.client_id}")
        revoked = status(config_beside(tmp_path, url=served.url), exit_code=1)
        assert "key-revoked" in revoked["coordinator"]
        assert revoked["running"]


@pytest.mark.parametrize("is_file", [True, False])
def test_status_names_an_unreadable_export_folder(
    served: Served,
    participant: Enrolled,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_file: bool,
) -> None:
    participant(served.federation(**alone_plan()))
    file, folder = config_beside(tmp_path, url=served.url), tmp_path / "tessera-served"
    file.write_text(file.read_text() + '[export]\nafter_round = "peft"\n')
    assert status(file, exit_code=1)["serving"]["unreadable"] is None
    folder.touch() if is_file else folder.symlink_to(folder)
    serving = status(file, exit_code=1)["serving"]
    reason = "not a directory" if is_file else "too many levels of symbolic links"
    assert serving["name"] is None
    assert serving["unreadable"].startswith(f"{folder / 'current'}: {reason}; correct the path")
    shown = tessera("status", "--config", file, env={"COLUMNS": "400"})
    assert f"not known; the export folder cannot be read: {serving['unreadable']}" in shown.stdout
    assert tessera("history", "--config", file).exit_code == 0
    assert f"{serving['unreadable']}; which revisions are served" in caplog.text


def test_damaged_file_hides_one_round_alone(
    served: Served, participant: Enrolled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = participant(served.federation(**alone_plan())).workspace.rounds
    stored.open(1).write(UPDATE, b"update")
    folder = stored.open(2)
    folder.write(RECEIPT, b"{")
    folder.write(BRIEF, b"{")
    rounds = status(config_beside(tmp_path, url=served.url), exit_code=1)["rounds"]
    assert [(entry["round"], entry["state"]) for entry in rounds] == [
        (2, "a file cannot be read"),
        (1, "update encoded, not delivered yet"),
    ]
    assert f"{folder.path}: a file is missing or damaged" in caplog.text


def test_status_without_membership_names_enrol(tmp_path: Path) -> None:
    done = tessera("status", "--config", config(tmp_path))
    assert done.exit_code == 1
    assert "tessera agent enrol" in done.stderr
