"""A federation of one base model: ordinary LoRA, shared by relevance, end to end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.rounds.participant import Participant
from client_agent.rounds.served_weights import read_weights
from client_agent.rounds.training_result import TrainingResult
from client_agent.settings import read_settings
from client_agent.storage.round_folder import TRAINED, WEIGHTS
from client_agent.training.silo import open_silo
from schemas.messages.recommendations import recommended
from tests.scene.agents import enrolled
from tests.scene.coordinator import Served
from tests.scene.silo_config import config

NAMES = ("aster", "birch")


def take_part(served: Served, federation_id: str, folder: Path) -> dict[str, Participant]:
    """Run two agents of one base model to the end, each in a thread of its own."""
    with ExitStack() as stack:
        agents: dict[str, Participant] = {}
        for name in NAMES:
            (folder / name).mkdir()
            silo = open_silo(read_settings(config(folder / name)))
            agents[name] = enrolled(served, federation_id, silo, folder / name, stack, name=name)
        with ThreadPoolExecutor(len(agents)) as pool:
            list(pool.map(run, agents.values()))
        return agents


@pytest.mark.slow
def test_agents_of_one_base_model_share_lora(served: Served, tmp_path: Path) -> None:
    adapter = recommended("fedmosaic", aligned=False)["adapter"]
    federation_id = served.federation(
        strategy={
            "name": "fedmosaic",
            "options": {"min_relevance": None, "guard": "off"},
        },
        adapter=adapter,
        rounds={"total": 2, "min_clients": 2, "collect_seconds": 60},
        training={"steps": 2, "max_length": 64, "learning_rate": 0.003},
        signature={"probe_examples": 4},
        scores={"examples": 8},
        wire={"recipe": "dense", "weights_recipe": "dense"},
    )
    served.start_federation(federation_id)
    agents = take_part(served, federation_id, tmp_path)
    path = f"/v1/federations/{federation_id}/rounds/1"
    rows = np.full((2, 2), 0.5)
    np.testing.assert_allclose(served.admin.get(f"{path}/relevance").json()["relevance"], rows, atol=1e-5)

    def read_round_file(name: str, number: int, file: str) -> bytes:
        return agents[name].workspace.rounds.open(number).read(file)

    for name, peer in (NAMES, NAMES[::-1]):
        trained = TrainingResult.from_bytes(read_round_file(name, 1, TRAINED))
        assert len({tensor.split(".")[1] for tensor in trained.adapter}) == len(adapter["roles"])
        layout = {tensor: values.shape for tensor, values in trained.adapter.items()}
        weights = read_weights(read_round_file(name, 2, WEIGHTS), layout)
        for tensor, values in TrainingResult.from_bytes(read_round_file(peer, 1, TRAINED)).adapter.items():
            mixed = (trained.adapter[tensor] + values) / 2
            np.testing.assert_allclose(weights[tensor], mixed, rtol=1e-5, atol=1e-6)
        assert (agents[name].workspace.home / "final_weights.safetensors").is_file()
