"""Base deltas and pruned ranks, end to end: two agents, three rounds over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_agent.rounds.checkpoints import Variant, adapter_of_round
from client_agent.settings import read_settings
from client_agent.storage.base_delta import BaseDelta, read_served
from client_agent.training.silo import Silo, open_silo
from schemas.maths.adapter import Layout
from tests.acceptance.scenarios.results import trained
from tests.scene.agent_processes import AgentProcess, prepare_agent
from tests.scene.coordinator import Served

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SCALE = 2.0
Run = Callable[..., list[AgentProcess]]


@pytest.fixture
def run(fresh_database: Callable[[str], str], serve: Callable[..., Served], tmp_path: Path) -> Run:
    """Run two agents for three rounds of a federation under a strategy."""

    def take_part(strategy: str, ranks: Mapping[str, int] = {}, **options: Any) -> list[AgentProcess]:
        served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.2)
        federation_id = served.federation(
            strategy={"name": strategy, "options": options},
            rounds={"total": 3, "min_clients": 2, "collect_seconds": 300},
            training={"steps": 3, "max_length": 64, "learning_rate": 0.01, "seed": 5},
            signature={"probe_examples": 4},
            adapter={"kind": "lora", "rank": 4, "scale": SCALE, "roles": ["v", "down"]},
            wire={"recipe": "dense"},  # what was sent is what was learnt, to the bit
        )
        served.start_federation(federation_id)
        agents = [
            prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name))
            for name in ("aster", "birch")
        ]
        for agent in agents:
            if agent.name in ranks:
                with (agent.folder / "silo.toml").open("a") as settings:
                    settings.write(f"lora_rank = {ranks[agent.name]}\n")
            agent.start()
        for agent in agents:
            agent.wait(250)
        return agents

    return take_part


def layout(agent: AgentProcess) -> Layout:
    return {name: values.shape for name, values in trained(agent, 2).adapter.items()}


def training_examples(agents: Sequence[AgentProcess]) -> list[int]:
    counts = [re.search(r"(\d+) training", agent.log) for agent in agents]
    return [int(count[1]) for count in counts if count is not None]


def effective_changes(agent: AgentProcess, number: int) -> dict[str, np.ndarray]:
    """Return the change of the base model by a round's weights: B A and the fold, by module."""
    fold = agent.file(number, "fold.safetensors")
    assert fold is not None, agent.log
    served, added = served_adapter(agent, number), BaseDelta.from_bytes(fold.read_bytes()).added
    return {
        module: product(served, module) + (added[module].B @ added[module].A if module in added else 0.0)
        for module in modules(agent)
    }


def served_adapter(agent: AgentProcess, number: int) -> dict[str, np.ndarray]:
    body = agent.file(number, "weights.safetensors")
    assert body is not None, agent.log
    return read_served(body.read_bytes(), layout(agent)).adapter


def modules(agent: AgentProcess) -> list[str]:
    return sorted({name[:-2] for name in layout(agent)})


def product(adapter: dict[str, np.ndarray], module: str) -> np.ndarray:
    return np.asarray(adapter[f"{module}.B"] @ adapter[f"{module}.A"])


def logits(agent: AgentProcess, around: Callable[[Silo], AbstractContextManager[object]]) -> np.ndarray:
    """Run the agent's model with something around it."""
    silo = open_silo(read_settings(agent.folder / "silo.toml"))
    model: Any = silo.base.model
    with around(silo), torch.no_grad():
        return np.asarray(model(input_ids=torch.tensor([[1, 5, 9, 14, 7, 22, 30, 6, 11]])).logits)


def reopened(agent: AgentProcess, number: int | None) -> Callable[[Silo], AbstractContextManager[object]]:
    """Put around a model what the agent was served for a round, or at the end."""
    home = next((agent.folder / "state").glob("fed_*"))
    variant: Variant = "kept" if number is None else "served"
    return lambda silo: adapter_of_round(silo, home, number, variant)


def written(weight: dict[str, np.ndarray]) -> Callable[[Silo], AbstractContextManager[object]]:
    """Write into the model's own weights what was added to them."""

    def write(silo: Silo) -> AbstractContextManager[object]:
        for module, values in weight.items():
            layer, role = module[1:].split(".")
            linear: Any = silo.base.parts.linear(silo.base.model, int(layer), role)  # type: ignore[arg-type]
            with torch.no_grad():
                linear.weight += SCALE * torch.from_numpy(values)
        return nullcontext()

    return write


@pytest.mark.parametrize("strategy", ["fedex_lora", "flora"])
def test_models_become_the_mean_of_all_changes(run: Run, strategy: str) -> None:
    agents = run(strategy)
    counts = [1, 1] if strategy == "fedex_lora" else training_examples(agents)
    first = agents[0]
    bare = logits(first, written({}))
    for trained_in, served_for in ((2, 3), (3, None)):
        before, served = effective_changes(first, trained_in), served_adapter(first, trained_in)
        sent = [trained(agent, trained_in).adapter for agent in agents]
        weights_expected = {
            module: before[module]
            - product(served, module)  # it is part of what is sent
            + np.average([product(tensors, module) for tensors in sent], axis=0, weights=counts)
            for module in modules(first)
        }
        expected = logits(first, written(weights_expected))
        assert np.abs(expected - bare).max() > 1e-3
        for agent in agents:
            np.testing.assert_allclose(
                logits(agent, reopened(agent, served_for)), expected, rtol=1e-4, atol=1e-5
            )


def test_het_lora_agents_prune_their_own_ranks(run: Run) -> None:
    aster, birch = run("het_lora", ranks={"birch": 3}, r_min=2, decay=0.75, pruning=10.0)
    ranks = [[len(trained(agent, n).adapter["l0.v.A"]) for n in (2, 3)] for agent in (aster, birch)]
    for of_agent, first in zip(ranks, (4, 3), strict=True):
        assert of_agent == sorted(of_agent, reverse=True)
        assert 2 <= of_agent[-1] < first
    assert set(trained(aster, 3).adapter) == set(trained(birch, 3).adapter)
