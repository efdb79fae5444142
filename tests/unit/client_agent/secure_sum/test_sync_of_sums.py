"""Secure sums of a member with an offline training machine: `sync` takes part, `work` trains."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from client_agent.storage.round_folder import INPUT, SCORES_SENT, SUMMED
from client_agent.training.silo import Silo
from tests.scene.coordinator import Served
from tests.scene.rounds import wait_for
from tests.scene.silo_config import config_beside
from tests.unit.client_agent.offline import Machines
from tests.unit.client_agent.secure_sum.summed_agents import agents_of, plan


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [{"name": "fedavg"}, {"name": "fed_vemoe", "options": {"experts": 1, "grace": 9}}]
)
def test_sync_waits_until_the_sum_is_over(
    strategy: dict[str, Any],
    served: Served,
    silo: Silo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with agents_of(served, silo, tmp_path, plan(3) | {"strategy": strategy}, 3) as agents:
        agents.start()
        own, *others = agents.agents
        machines = Machines(
            config_beside(own.participant.workspace.folder, url=served.url), silo, monkeypatch
        )
        tasks = []
        while not own.folder().has(INPUT):
            assert machines.sync().next == "work"
            tasks.append(machines.work())
        assert tasks == ["prepare", "train"]
        for agent in others:
            agent.train()
        errors: dict[str, BaseException] = {}
        summing = threading.Thread(target=lambda: errors.update(agents.sum(others)))
        summing.start()
        assert machines.sync().next == "work"  # the final weights
        summing.join(timeout=120)
        assert not errors
        assert own.folder().has(SUMMED)
        assert own.folder().has(SCORES_SENT)
        assert machines.work() == "score"
        assert machines.sync().next == "finished"
        view = wait_for(served, agents.federation_id, 1, "published")
        assert view["counts"]["arrived"] == 3
