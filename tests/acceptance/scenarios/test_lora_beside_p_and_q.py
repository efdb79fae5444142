"""Agents on two base models: P and Q shared by all, LoRA by equal models, the rest private."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from client_agent.model.loading import base_model_slug
from client_agent.rounds.served_weights import read_weights
from tests.acceptance.scenarios.results import trained
from tests.scene.agent_processes import EXAMPLES, MODELS, AgentProcess, prepare_agent
from tests.scene.coordinator import Served

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PLAN = {
    "strategy": {
        "name": "fedmosaic",
        "options": {"sources": "all", "min_relevance": None, "guard": "off"},
    },
    "rounds": {"total": 2, "min_clients": 3, "collect_seconds": 300},
    "wire": {"weights_recipe": "dense"},  # what is served is what was made, to the bit
    "training": {"steps": 3, "max_length": 64, "learning_rate": 0.01},
    "signature": {"probe_examples": 12},
    "adapter": {"rank": 8, "roles": ["v", "down"], "same_architecture_rank": 4, "private_rank": 2},
    "alignment": {"pivot": base_model_slug(str(MODELS["S"])), "frames": "random"},
}


def stored_update(agent: AgentProcess) -> dict[str, np.ndarray]:
    """What the coordinator holds of an agent after round 1: what was trained, in the recipe's few bits."""
    return safetensors.numpy.load(agent.read(1, "sent.safetensors"))


def served_after(agent: AgentProcess) -> dict[str, np.ndarray]:
    return read_weights(
        agent.read(2, "weights.safetensors"), {n: v.shape for n, v in trained(agent, 1).adapter.items()}
    )


def test_base_models_share_pq_and_not_lora(
    fresh_database: Callable[[str], str], serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(**PLAN)
    anchors = json.loads((EXAMPLES / "anchors.json").read_bytes())
    assert served.admin.put(f"/v1/federations/{federation_id}/anchors", json=anchors).is_success
    served.start_federation(federation_id)
    aster, birch, cedar = agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name), model=model)
        for name, model in (("aster", "S"), ("birch", "S"), ("cedar", "L"))
    ]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.wait(400)
    names = {
        c["client_id"]: c["name"]
        for c in served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    }
    shown = served.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    order = [names[client] for client in shown["clients"]]
    weights = {
        name: dict(zip(order, row, strict=True)) for name, row in zip(order, shown["relevance"], strict=True)
    }
    # Whose LoRA an agent gets: its own and that of agents with an equal model.
    equal_models = {"aster": (aster, birch), "birch": (aster, birch), "cedar": (cedar,)}
    for agent in agents:
        assert not any(name.startswith("private") for name in trained(agent, 1).adapter)
        assert trained(agent, 1).private["private.l0.v.B"].shape == (
            trained(agent, 1).adapter["l0.v.B"].shape[0],
            2,
        )
        for name, values in served_after(agent).items():
            senders = equal_models[agent.name] if name.startswith("l") else agents
            expected = np.average(
                [stored_update(peer)[name] for peer in senders],
                axis=0,
                weights=[weights[agent.name][peer.name] for peer in senders],
            )
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7, err_msg=f"{agent.name} {name}")
    assert 0 < weights["cedar"]["aster"] < 1
