"""CA-PFL end to end: two agents in processes of their own, one of which is killed and restarted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.rounds.served_weights import read_weights
from tests.acceptance.scenarios.results import trained
from tests.scene.agent_processes import AgentProcess, prepare_agent
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PLAN = {
    "strategy": {"name": "ca_pfl", "options": {"warm_rounds": 1}},
    "rounds": {"total": 3, "min_clients": 2, "collect_seconds": 300},
    "training": {"steps": 4, "max_length": 64, "learning_rate": 0.01},
    "signature": {"probe_examples": 4},
    "adapter": {"kind": "lora", "rank": 4, "scale": 4.0, "roles": ["q", "v"]},
    "wire": {"recipe": {"reference": "served", "density": 0.9, "values": "int8"}},
}


def measured(agent: AgentProcess, number: int) -> list[dict[str, Any]]:
    rounds: list[dict[str, Any]] = json.loads(agent.read(number, "ca_pfl.json"))["rounds"]
    return rounds


def weights(agent: AgentProcess, number: int) -> dict[str, np.ndarray]:
    layout = {name: values.shape for name, values in trained(agent, number).adapter.items()}
    return read_weights(agent.read(number, "weights.safetensors"), layout)


def test_ca_pfl_agents_learn_their_own_importances(
    fresh_database: Callable[[str], str], serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(**PLAN)
    served.start_federation(federation_id)
    agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name))
        for name in ("aster", "birch")
    ]
    aster = agents[0]
    for agent in agents:
        agent.start()
    wait_until(lambda: aster.file(1, "trained.safetensors"), event="aster's training")
    aster.kill()
    aster.start()
    for agent in agents:
        agent.wait(250)
    for agent in agents:
        rounds = measured(agent, 3)
        assert [measurement["round"] for measurement in rounds] == [1, 2, 3]
        assert rounds[0]["density"] > 0.85
        assert all(0.2 < measurement["density"] < 0.28 for measurement in rounds[1:])
        assert all(measurement["residual"] > 0 for measurement in rounds)
        assert rounds[2]["importance"][0] < rounds[2]["importance"][2]
    first, second = (trained(agent, 3) for agent in agents)
    assert (first.private["posterior.u"] != second.private["posterior.u"]).any()
    served_to = [weights(agent, 3) for agent in agents]
    assert all((served_to[0][name] == served_to[1][name]).all() for name in first.adapter)
    assert served_to[0]["l0.q.B"].any()
    for number in (1, 2, 3):
        shown = served.admin.get(f"/v1/federations/{federation_id}/rounds/{number}").json()
        assert [client["state"] for client in shown["clients"]] == ["arrived", "arrived"]
