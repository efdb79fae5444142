"""The agent's commands: training alone, and error messages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.agent_entries import MEMBERSHIP
from client_agent.identity.agent_folder import Membership
from client_agent.rounds.training_result import TrainingResult
from schemas.command import application
from schemas.identity.enrolment_token import EnrolmentTokenText
from tests.scene.agent_processes import TESSERA, environment, tessera
from tests.scene.coordinator import Served
from tests.scene.silo_config import config, config_beside

PLAN = {
    "name": "alone",
    "strategy": {"name": "fedavg"},
    "rounds": {"total": 2},
    "adapter": {"kind": "pq", "rank": 4, "roles": ["v"]},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
}


@pytest.mark.slow
def test_train_prints_scores_and_writes_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    out = tmp_path / "adapter.safetensors"
    done = tessera(
        "agent",
        "train",
        "--config",
        str(config(tmp_path)),
        "--plan",
        str(tmp_path / "plan.json"),
        "--out",
        str(out),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert len(scores) == 2
    assert scores[1]["served"]["loss"] == scores[0]["trained"]["loss"]
    trained = TrainingResult.from_bytes(out.read_bytes())
    assert trained.adapter["b3.v.P"].shape == (4, 4)
    assert trained.scores.trained["loss"].value == scores[1]["trained"]["loss"]["value"]


def test_unusable_options_fail_before_training(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    arguments = ("train", "--config", str(config(tmp_path)), "--plan", str(tmp_path / "plan.json"))
    done = tessera("agent", *arguments, "--out", str(tmp_path / "nowhere" / "x"))
    assert done.returncode == 1
    assert "there is no folder" in done.stderr
    done = tessera("agent", *arguments, "--pack", str(tmp_path / "no [red] pack"))
    assert done.returncode == 1
    assert "no [red] pack cannot be read" in done.stderr
    done = tessera("agent", *arguments, "--experts", "2", "--top-m", "4")
    assert done.returncode == 1
    assert "--top-m 4 needs --experts 3 or more" in done.stderr


@pytest.mark.slow
def test_stopped_train_reports_that_it_does_not_resume(tmp_path: Path) -> None:
    plan = PLAN | {"rounds": {"total": 1000}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with subprocess.Popen(
        [TESSERA, "agent", "train", "--config", config(tmp_path), "--plan", tmp_path / "plan.json"],
        env=environment() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("round 1")
        process.terminate()
        stderr = process.stderr.read()
        assert process.wait(timeout=20) == 130
    assert "the next start begins from zero" in stderr
    assert "resumes" not in stderr


def test_seed_beyond_63_bits_is_refused_before_loading(tmp_path: Path) -> None:
    done = tessera("agent", "alignment-test", "--config", str(config(tmp_path)), "--seed", str(2**63))
    assert done.returncode == 2
    assert "--seed" in done.stderr


def test_run_without_membership_names_enrol(tmp_path: Path) -> None:
    done = tessera("agent", "run", "--config", str(config(tmp_path)))
    assert done.returncode == 1
    assert "run `tessera agent enrol` first" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["enrol", "run"])
def test_damaged_token_is_refused_before_loading(tmp_path: Path, command: str) -> None:
    token = ["--name", "aster", "--token", "tsr1_cut"]
    done = tessera("agent", command, "--config", str(config(tmp_path)), *token)
    assert done.returncode == 1
    assert "copy it whole" in done.stderr
    assert "silo:" not in done.stderr


@pytest.mark.parametrize("command", ["enrol", "run"])
@pytest.mark.parametrize("name", ["a/b", "..."])
def test_invalid_name_is_refused_before_any_request(tmp_path: Path, command: str, name: str) -> None:
    token = str(EnrolmentTokenText("0" * 24, "s" * 43, "k" * 43))
    settings = str(config(tmp_path, url="http://127.0.0.1:1"))
    done = CliRunner().invoke(
        application("agent"), ["agent", command, "--config", settings, "--name", name, "--token", token]
    )
    assert done.exit_code == 1
    assert "the client's name is refused: " in done.stderr
    assert "did not answer" not in done.stderr


def test_token_of_another_coordinator_is_refused_before_loading(served: Served, tmp_path: Path) -> None:
    token = EnrolmentTokenText("0" * 24, "s" * 43, "k" * 43)
    settings = str(config(tmp_path, url=served.url))
    done = CliRunner().invoke(
        application("agent"),
        ["agent", "enrol", "--config", settings, "--name", "aster", "--token", str(token)],
    )
    assert done.exit_code == 1
    assert "nothing was sent to it" in done.stderr
    assert "silo:" not in done.stderr


@pytest.mark.slow
def test_enrolment_gives_a_stopped_coordinator_up_soon(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_agent.cli.agent._ENROL_SECONDS", 0.5)
    token = served.enrolment_token(served.federation(), "aster")
    settings = str(config(tmp_path, url="http://127.0.0.1:1"))
    began = time.monotonic()
    done = CliRunner().invoke(
        application("agent"), ["agent", "enrol", "--config", settings, "--name", "aster", "--token", token]
    )
    assert time.monotonic() - began < 60  # the default of settings is a quarter of an hour
    assert done.exit_code == 1
    assert "http://127.0.0.1:1 did not answer" in done.stderr


@pytest.mark.slow
def test_check_without_configuration_names_the_missing_setting() -> None:
    done = tessera("agent", "check", "--json")
    assert done.returncode == 1
    finding = json.loads(done.stdout)[0]
    assert not finding["good"]
    assert "url: missing; add it" in finding["found"]
    assert "--config with a silo.toml, which `tessera agent init` writes" in finding["found"]


def test_idle_work_imports_no_heavy_package(tmp_path: Path) -> None:
    file = config_beside(tmp_path)
    member = Membership(name="aster", client_id="cli_1", federation_id="fed_1", server_key="key")
    (tmp_path / MEMBERSHIP).write_text(member.model_dump_json())
    program = (
        "import sys\n"
        "from schemas.command import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'httpx', 'cryptography', 'coordinator', 'fastapi', "
        "'schemas.messages.federations', 'schemas.messages.rounds'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", program, "agent", "work", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nothing to do\nnext: tessera agent sync\n"
