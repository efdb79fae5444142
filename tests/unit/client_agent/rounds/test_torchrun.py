"""An agent under torchrun: its round ends with a reason when a rank is killed or stopped, and resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import PARTIAL, TRAINED
from tests.scene.agent_processes import TESSERA, AgentProcess, environment, prepare_agent
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until

PLAN: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "rounds": {"total": 1, "min_clients": 1, "collect_seconds": 600},
    "adapter": {"kind": "lora", "rank": 4, "roles": ["q", "v"]},
    "training": {"steps": 400, "batch_size": 8, "max_length": 64, "learning_rate": 0.001},
    "scores": {"examples": 8},
}


def start(agent: AgentProcess) -> subprocess.Popen[bytes]:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--no-python",
    ]
    variables = {"TESSERA_AGENT_TOKEN": agent.token, "TESSERA_AGENT_NAME": agent.name}
    with (agent.folder / "agent.log").open("ab") as log:
        command = [
            *torchrun,
            "--no-python",
            TESSERA,
            "agent",
            "run",
            "--config",
            str(agent.folder / "silo.toml"),
        ]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment() | variables)


def rank_one(parent: int) -> int:
    """Return the process of rank 1."""
    (pid,) = [p.pid for p in psutil.Process(parent).children() if p.environ().get("RANK") == "1"]
    return pid


def kill_rank_one(torchrun: subprocess.Popen[bytes]) -> None:
    os.kill(rank_one(torchrun.pid), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("end", "explanation"),
    [
        (kill_rank_one, "another process of torchrun ended"),
        (subprocess.Popen.terminate, "stopped; start the same command again to resume"),
    ],
    ids=["killed", "stopped"],
)
def test_torchrun_round_ends_with_reason_and_resumes(
    end: Callable[[subprocess.Popen[bytes]], None], explanation: str, served: Served, tmp_path: Path
) -> None:
    federation_id = served.federation(**PLAN)
    served.start_federation(federation_id)
    agent = prepare_agent(tmp_path, "aster", served.url, served.enrolment_token(federation_id, "aster"))
    file = agent.folder / "silo.toml"
    file.write_text(f"{file.read_text()}checkpoint_seconds = 1\n")
    first = start(agent)
    wait_until(lambda: agent.file(1, PARTIAL) is not None, 300)
    end(first)
    assert first.wait(timeout=120) != 0
    assert explanation in agent.log
    assert agent.file(1, TRAINED) is None
    second = start(agent)
    assert second.wait(timeout=400) == 0, agent.log
    assert "training: resuming after step" in agent.log
    trained = agent.file(1, TRAINED)
    assert trained is not None
    scores = TrainingResult.read(trained).scores
    assert scores.trained["loss"].value < scores.served["loss"].value
    assert served.rounds(federation_id)[0]["state"] == "published"
