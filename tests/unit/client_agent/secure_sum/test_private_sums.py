"""Private training with summed updates: two guarantees in one round, over HTTP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.privacy.accountant import epsilon_of_counted
from client_agent.privacy.ledger import Ledger
from client_agent.training.silo import Silo
from tests.scene.coordinator import Served
from tests.scene.rounds import wait_for
from tests.unit.client_agent.secure_sum.summed_agents import agents_of, plan, total_of

CLIENTS = 3


@pytest.mark.slow
def test_private_training_sums_exactly_and_charges_each_silo(
    served: Served, silo: Silo, tmp_path: Path
) -> None:
    private_plan = plan(CLIENTS, total=2)
    private_plan["privacy"]["training"] = {"epsilon": 4.0}
    with agents_of(served, silo, tmp_path, private_plan, CLIENTS) as agents:
        agents.start()
        for number in (1, 2):
            agents.train()
            assert agents.sum() == {}
            view = wait_for(served, agents.federation_id, number, "published", 60)
            assert view["secure_sum"]["counted"] == CLIENTS
            inputs = [agent.input(number) for agent in agents.agents]
            assert np.array_equal(total_of(served, agents.federation_id, number), np.sum(inputs, axis=0))
            assert [client["training_epsilon"] for client in view["clients"]] == [None] * CLIENTS
        claims = " ".join(view["claims"])
        for agent in agents.agents:
            first, second = Ledger(agent.participant.workspace.folder).read().training
            assert [(first.round, first.steps), (second.round, second.steps)] == [(1, 2), (2, 2)]
            assert second.epsilon == epsilon_of_counted([(second.mechanism, 4)], 1e-5) <= 4.0
    assert "Updates: record-level (4, 1e-05)-differential privacy against everybody" in claims
