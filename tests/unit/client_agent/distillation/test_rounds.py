"""Distillation rounds of two agents with different tokenizers, over the product's own rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from client_agent.distillation.part import read_mixture, sent_outputs
from client_agent.policy import Policy, PolicyRefused
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.settings import read_settings
from client_agent.storage.round_folder import MIXTURE, OUTPUTS, RECEIPT, SKETCH, TRAINED, UPDATE, WEIGHTS
from client_agent.training.silo import open_silo
from schemas.wire.outputs import ROW_BYTES, Outputs, mixed
from tests.scene.agent_processes import EXAMPLES, MODELS
from tests.scene.agents import enrolled, next_brief
from tests.scene.coordinator import Served
from tests.scene.silo_config import config

ANCHORS = [
    {"id": str(place), "prompt": f"CIPHER {word}=", "answer": word}
    for place, word in enumerate(("abcd", "dcba"))
]
ROWS = 10
PLAN = {
    "strategy": {"name": "fedmosaic", "options": {"distil": {"texts": 2}, "min_relevance": None}},
    "adapter": {"kind": "lora", "rank": 2, "bias": False, "roles": ["v"]},
    "rounds": {"total": 3, "min_clients": 2, "collect_seconds": 60},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.003},
    "signature": {"probe_examples": 4},
    "scores": {"examples": 4, "new_tokens": 0},
}


@pytest.fixture
def agents(served: Served, tmp_path: Path) -> Iterator[list[Participant]]:
    with ExitStack() as stack:
        silos = {}
        for letter in "sq":
            (tmp_path / letter).mkdir()
            folder = EXAMPLES / "models" / f"tiny-{letter}"
            changes = {"model": str(folder), "pivot_model": str(MODELS["S"])}
            silos[letter] = open_silo(read_settings(config(tmp_path / letter, **changes)))
        signature = PLAN["signature"] | {"model": silos["s"].base.slug}
        federation_id = served.federation(**PLAN | {"signature": signature})
        path = f"/v1/federations/{federation_id}"
        assert served.admin.put(f"{path}/anchors", json={"anchors": ANCHORS}).status_code == 201
        members = [
            enrolled(served, federation_id, silo, tmp_path / letter, stack, name=f"silo-{letter}")
            for letter, silo in silos.items()
        ]
        assert served.admin.post(f"{path}/start").status_code == 200
        yield members


def files(agent: Participant, number: int) -> Path:
    return agent.workspace.rounds.open(number).path


def run_round(agents: list[Participant]) -> None:
    for brief, agent in [(next_brief(agent), agent) for agent in agents]:
        take_part(agent, brief)


@pytest.mark.slow
def test_pull_to_peers_is_reproducible_after_a_kill(
    agents: list[Participant],
) -> None:
    run_round(agents)
    assert not any((files(agent, 1) / MIXTURE).exists() for agent in agents)
    sent = [Outputs(**renamed(agent)) for agent in agents]
    assert [outputs.bytes.shape for outputs in sent] == [(ROWS, 8)] * 2
    briefs = [next_brief(agent) for agent in agents]
    first, second = agents
    take_part(first, briefs[0], until=RECEIPT)
    take_part(second, briefs[1], until=RECEIPT)
    for agent, peer in ((first, sent[1]), (second, sent[0])):
        mixture = read_mixture(agent.workspace.rounds.open(2))
        assert mixture is not None
        np.testing.assert_allclose(mixture.dense(), mixed([peer], np.array([1.0])).dense(), atol=1e-3)
    update, trained = ((files(first, 2) / name).read_bytes() for name in (UPDATE, TRAINED))
    for name in (TRAINED, OUTPUTS, SKETCH, UPDATE, RECEIPT):  # killed during the training
        (files(first, 2) / name).unlink()
    take_part(first, briefs[0])
    assert (files(first, 2) / TRAINED).read_bytes() == trained
    assert (files(first, 2) / UPDATE).read_bytes() == update


def renamed(agent: Participant) -> dict[str, np.ndarray]:
    tensors = sent_outputs(agent.workspace.rounds.open(1))
    return {name.rpartition(".")[2]: values for name, values in tensors.items()}


def test_pull_changes_the_trained_adapter(agents: list[Participant]) -> None:
    run_round(agents)
    agent = agents[1]
    brief = next_brief(agent)
    take_part(agent, brief, until=TRAINED)
    pulled = (files(agent, 2) / TRAINED).read_bytes()
    for name in (TRAINED, MIXTURE):
        (files(agent, 2) / name).unlink()
    take_part(agent, brief, until=TRAINED)
    assert (files(agent, 2) / TRAINED).read_bytes() != pulled


def test_policy_limit_of_bytes_counts_outputs(agents: list[Participant]) -> None:
    agent = agents[0]
    brief = next_brief(agent)
    agent.session.policy = Policy(max_update_bytes=1)
    with pytest.raises(PolicyRefused, match=r"has up to (\d+) bytes") as refused:
        take_part(agent, brief)
    size = int(str(refused.value).partition("has up to ")[2].split()[0])
    agent.session.policy = Policy(max_update_bytes=size - ROWS * ROW_BYTES)
    with pytest.raises(PolicyRefused):
        take_part(agent, brief)
    assert not (files(agent, 1) / WEIGHTS).exists()
