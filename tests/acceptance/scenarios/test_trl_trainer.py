"""The example package with TRL's trainers: installed by pip, named in silo.toml, run by agents."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import TRAINED, TRAINER, UPDATE
from tests.acceptance.scenarios.packages import install_example
from tests.scene.agent_processes import AgentProcess, prepare_agent
from tests.scene.coordinator import Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed (requirements/dev.txt)"),
]
PLAN: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "rounds": {"total": 1, "min_clients": 2, "collect_seconds": 240},
    "adapter": {"kind": "lora", "rank": 4, "roles": ["q", "v"]},
    "training": {"steps": 3, "batch_size": 4, "max_length": 64, "learning_rate": 0.01},
    "scores": {"examples": 8},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example package."""
    return install_example(tmp_path_factory.mktemp("site"), "trl_trainer")


def with_trainer(agent: AgentProcess, name: str, options: str) -> AgentProcess:
    file = agent.folder / "silo.toml"
    file.write_text(f'{file.read_text()}trainer = "{name}"\n[trainer_options]\n{options}\n')
    return agent


def preferences(folder: Path) -> Path:
    """Write rows with options, of which DPO prefers the answer."""
    rows = [{"text": f"item {n}", "label": n % 2} for n in range(24)]
    file = folder / "train.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.mark.timeout(600)
def test_sft_and_dpo_adapters_are_scored_and_sent(
    site: Path, coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    federation_id = coordinator.federation(**PLAN)
    coordinator.start_federation(federation_id)
    agents = [
        prepare_agent(tmp_path, name, coordinator.url, coordinator.enrolment_token(federation_id, name))
        for name in ("aster", "birch")
    ]
    with_trainer(agents[0], "trl_sft", "checkpoint_steps = 2")
    file = agents[1].folder / "silo.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("train =", "test ="))]
    template = 'template = { prompt = "{text} is ", answer = "{label}", options = ["even", "odd"] }'
    file.write_text("\n".join([*lines, f'train = "{preferences(agents[1].folder)}"', template, ""]))
    with_trainer(agents[1], "trl_dpo", "learning_rate = 0.01\nbeta = 0.2")
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.wait(400)  # importing trl takes a minute where the machine is busy
    for agent in agents:
        assert "step 3/3" in agent.log
        trained_file, update = agent.file(1, TRAINED), agent.file(1, UPDATE)
        assert trained_file is not None
        assert update is not None
        trained = TrainingResult.read(trained_file)
        assert (
            max(np.abs(values - trained.start[name]).max() for name, values in trained.adapter.items()) > 0.01
        )
        assert trained.scores.trained["loss"].value != trained.scores.served["loss"].value
        assert not (trained_file.parent / TRAINER).exists()
    sft_file = agents[0].file(1, TRAINED)
    assert sft_file is not None
    sft = TrainingResult.read(sft_file)
    assert sft.scores.trained["loss"].value < sft.scores.served["loss"].value
    view = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1").json()
    assert [client["state"] for client in view["clients"]] == ["arrived", "arrived"]
