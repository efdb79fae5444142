"""The methods for ordinary LoRA, end to end: two real agents, three rounds over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.local_training import Trained
from client_agent.reopening import read_weights
from schemas.maths.adapter import Layout, factor_of
from tests.integration.agents import AgentProcess, prepare_agent
from tests.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Run = Callable[..., list[AgentProcess]]


@pytest.fixture
def run(fresh_database: Callable[[str], str], serve: Callable[..., Served], tmp_path: Path) -> Run:
    """Let two agents take part in three rounds of a federation under a strategy."""

    def take_part(strategy: str, **options: Any) -> list[AgentProcess]:
        served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.2)
        fid = served.federation(
            strategy={"name": strategy, "options": options},
            rounds={"total": 3, "min_clients": 2, "collect_seconds": 300},
            training={"steps": 3, "max_length": 64, "seed": 5},
            signature={"probe_examples": 4},
            adapter={"kind": "lora", "rank": 4, "roles": ["v", "down"]},
        )
        assert served.admin.post(f"/v1/federations/{fid}/start").is_success
        agents = [
            prepare_agent(tmp_path, name, served.url, served.enrolment_token(fid, name))
            for name in ("aster", "birch")
        ]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.wait(250)
        return agents

    return take_part


def trained(agent: AgentProcess, number: int) -> Trained:
    file = agent.file(number, "trained.safetensors")
    assert file is not None, agent.log
    return Trained.read(file)


def layout(agent: AgentProcess) -> Layout:
    return {name: values.shape for name, values in trained(agent, 2).adapter.items()}


def served_weights(agent: AgentProcess, number: int) -> dict[str, np.ndarray]:
    file = agent.file(number, "weights.safetensors")
    assert file is not None, agent.log
    return read_weights(file.read_bytes(), layout(agent))


@pytest.mark.parametrize(("strategy", "sent"), [("ffa_lora", "B"), ("fedsa_lora", "A")])
def test_half_of_the_adapter_travels_and_the_rest_stays(run: Run, strategy: str, sent: str) -> None:
    agents = run(strategy)
    for agent in agents:
        assert {factor_of(name) for name in layout(agent)} == {sent}
        for name, values in served_weights(agent, 3).items():
            mean = np.mean([trained(peer, 2).adapter[name] for peer in agents], axis=0)
            np.testing.assert_allclose(values, mean, rtol=1e-5, atol=1e-7)
    aster, birch = (trained(agent, 3).private for agent in agents)
    same = [np.array_equal(aster[name], birch[name]) for name in aster]
    assert all(same) if strategy == "ffa_lora" else not any(same)


def test_lora_fair_serves_a_b_that_makes_up_for_the_cross_terms(run: Run) -> None:
    agents = run("lora_fair", ridge=1e-4)
    for agent in agents:
        served = served_weights(agent, 3)
        for module in {name[:-2] for name in served}:
            sent = [trained(peer, 2).adapter for peer in agents]
            ideal = np.mean([one[f"{module}.B"] @ one[f"{module}.A"] for one in sent], axis=0)
            a, b = (np.mean([one[f"{module}.{side}"] for one in sent], axis=0) for side in "AB")
            np.testing.assert_allclose(served[f"{module}.A"], a, rtol=1e-5, atol=1e-7)
            error = np.linalg.norm(served[f"{module}.B"] @ a - ideal)
            assert error < np.linalg.norm(b @ a - ideal)
