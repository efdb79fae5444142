"""Masked rounds of a bank of experts, with training agents, two of them killed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from client_agent.experts.bank_files import read_bank, read_index
from client_agent.experts.memory import EXPERTS, ExpertMemory
from client_agent.rounds.steps import take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import INPUT, READY, SUMMED, TRAINED
from client_agent.training.silo import Silo
from schemas.maths.bank import expert_tensors
from schemas.messages.rounds import RoundBrief
from schemas.secure_sum.encoding import largest_encoded
from tests.scene.coordinator import Served
from tests.scene.faults import Killed
from tests.scene.rounds import wait_for
from tests.scene.threads import run_at_once
from tests.unit.client_agent.secure_sum.summed_agents import Agent, Agents, agents_of, plan
from tests.unit.client_agent.secure_sum.wires import Exchange, Wire

CLIENTS = 5
TOLERANCE = 2e-5  # changes of up to two steps of 0.01, and weights, both rounded to 2^-15
HALF = 2**-10  # experts are float16, rounded up or down


def bank_plan(total: int, **options: Any) -> dict[str, Any]:
    summed_plan = plan(CLIENTS, total=total)
    return summed_plan | {"strategy": {"name": "fed_vemoe", "options": {"experts": 2, "grace": 9, **options}}}


def choice(agent: Agent, number: int) -> tuple[tuple[int, ...], dict[int, float]]:
    """Return which experts an agent trained in a round, and its responsibilities: it alone knows them."""
    stored = ExpertMemory(agent.participant.session.home / EXPERTS).rounds[number]
    return stored.trained, stored.responsibilities


def bank_of(agent: Agent, number: int) -> dict[str, np.ndarray]:
    folder = agent.folder(number)
    layout = {n: v.shape for n, v in expert_tensors(0, trained_adapter(agent, number)).items()}
    return read_bank(agent.participant.session.home, folder, layout)


def trained_adapter(agent: Agent, number: int) -> dict[str, np.ndarray]:
    return TrainingResult.from_bytes(agent.folder(number).read(TRAINED)).adapter


def start_of(agent: Agent, number: int) -> dict[str, np.ndarray]:
    return TrainingResult.from_bytes(agent.folder(number).read(TRAINED)).start


def sum_and_revive(agents: Agents, wire: Wire) -> list[str]:
    """Sum all agents, and restart each that is killed; return the killed."""
    killed: list[str] = []

    def run(agent: Agent) -> None:
        while True:
            try:
                agent.sum()
                return
            except Killed:
                killed.append(agent.name)
                del wire.dies_before[agent.name]

    assert not run_at_once({agent.name: partial(run, agent) for agent in agents.agents}, 240)
    return sorted(killed)


@pytest.mark.slow
def test_bank_is_weighted_mean_of_members_changes(served: Served, silo: Silo, tmp_path: Path) -> None:
    wire = Wire(dies_before={"silo-0": 1})

    def kill_another_in_the_sum(exchange: Exchange) -> None:
        if exchange.agent == "silo-1" and exchange.path.endswith("/rounds/1/secure-sum/2/0"):
            wire.dies_before["silo-1"] = 3

    wire.on_exchange = kill_another_in_the_sum
    with agents_of(served, silo, tmp_path, bank_plan(3, explore_rounds=0), CLIENTS, wire.transport) as agents:
        agents.start()
        for number in (1, 2, 3):
            agents.train()
            killed = sum_and_revive(agents, wire)
            assert killed == (["silo-0", "silo-1"] if number == 1 else [])
            view = wait_for(served, agents.federation_id, number, "published")
            assert view["secure_sum"]["counted"] == CLIENTS
            assert [s["kind"] for s in view["secure_sum"]["sessions"]] == ["counts", "sum"]
            assert all(agent.folder(number).has(SUMMED) for agent in agents.agents)
            if number > 1:
                _is_mean_of_members(agents, number)
        shown = served.admin.get(f"/v1/federations/{agents.federation_id}/experts").json()
    used = {entry["round"]: entry["users"] for entry in shown["rounds"]}
    for number in (1, 2, 3):
        chosen = [choice(agent, number)[0] for agent in agents.agents]
        assert used[number] == {str(k): sum(k in trained for trained in chosen) for k in (1, 2)}
    assert not wire.of("PUT", "/update")
    assert not wire.of("PUT", "/scores")
    fetched = [e.path for e in wire.exchanges if "/experts/" in e.path and e.agent == "silo-2"]
    assert len(fetched) == len(set(fetched)), "a revision is downloaded once"


@pytest.mark.slow
def test_client_without_stored_choices_counts_for_changed_experts(
    served: Served, silo: Silo, tmp_path: Path
) -> None:
    with agents_of(served, silo, tmp_path, bank_plan(1, explore_rounds=0), CLIENTS) as agents:
        agents.start()
        agent = agents.agents[0]
        session = agent.participant.session
        brief = session.api.current_round(session.federation_id)
        assert isinstance(brief, RoundBrief)
        agents.train()
        before = agent.folder(1).read(INPUT)
        (expert,) = choice(agent, 1)[0]
        (session.home / EXPERTS).write_text("{")
        agent.folder(1).forget(READY, INPUT)
        assert take_part(agent.participant, brief, until=READY)
        assert not sum_and_revive(agents, Wire())
        after = safetensors.numpy.load(agent.folder(1).read(INPUT))
        counts = {name: int(values[0]) for name, values in after.items() if name in ("x1", "x2", "reject")}
        assert counts == {"x1": 0, "x2": 0, "reject": 0} | {f"x{expert}": largest_encoded(16)}
        assert counts == {n: int(safetensors.numpy.load(before)[n][0]) for n in counts}
        wait_for(served, agents.federation_id, 1, "published")


def _is_mean_of_members(agents: Agents, number: int) -> None:
    """Check what a round begins with against what members learnt in the one before."""
    before = [
        (start_of(a, number - 1), trained_adapter(a, number - 1), choice(a, number - 1))
        for a in agents.agents
    ]
    now = bank_of(agents.agents[0], number)
    revisions = {
        entry.expert: entry.revision for entry in read_index(agents.agents[0].folder(number)).experts
    }
    for expert in (0, 1, 2):
        members = [place for place in before if expert == 0 or expert in place[2][0]]
        if expert and len(members) < 3:
            assert revisions[expert] < number - 1
            continue
        weights = np.array([place[2][1][expert] if expert else 1.0 for place in members])
        for name in expert_tensors(expert, now):
            key = f"x{expert}.{name}"
            changes = np.stack([place[1][key] - place[0][key] for place in members])
            mean = np.tensordot(weights / weights.sum(), changes, axes=1)
            expected = before[0][0][key] + mean
            np.testing.assert_allclose(now[key], expected, atol=TOLERANCE, rtol=HALF if expert else 1e-7)
