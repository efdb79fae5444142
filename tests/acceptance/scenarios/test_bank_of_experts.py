"""A federation with a bank of experts, with agents as processes: two are killed in different phases, and the
coordinator once; the bank goes on, and all export what they use.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.scene.agent_processes import prepare_agent, tessera
from tests.scene.coordinator import ADMIN_TOKEN
from tests.scene.replica_processes import Coordinator
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


PLAN = {
    "name": "bank",
    "strategy": {"name": "fed_vemoe", "options": {"experts": 2, "top_m": 3, "explore_rounds": 1}},
    "rounds": {"total": 3, "min_clients": 3, "collect_seconds": 300},
    "training": {"steps": 6, "max_length": 64, "learning_rate": 0.003},
    "adapter": {"kind": "lora", "rank": 4, "roles": ["q", "v"]},
    "privacy": {"secure_sum": {"minimum": 3}},
}


def test_agents_share_a_bank_and_export_it(database_url: str, tmp_path: Path) -> None:
    coordinator = Coordinator(database_url, tmp_path / "coordinator.log")
    coordinator.start()
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    agents = []
    with httpx.Client(base_url=coordinator.url, headers=headers, timeout=30) as admin:
        path = f"/v1/federations/{admin.post('/v1/federations', json=PLAN).json()['id']}"
        for name in ("aster", "birch", "cedar"):
            token = admin.post(f"{path}/enrolment-tokens", json={"client_name": name}).json()["token"]
            agents.append(prepare_agent(tmp_path, name, coordinator.url, token, silo="aster"))
        admin.post(f"{path}/start")
        victim, second, _ = agents
        try:
            for agent in agents:
                agent.start()
            wait_until(lambda: victim.file(2, "weights.safetensors"), seconds=240, event="the second round")
            victim.kill()
            wait_until(lambda: second.file(2, "bank.json"), seconds=120, event="the training of the second")
            second.kill()
            coordinator.kill()
            coordinator.start()
            victim.start()
            second.start()
            for agent in agents:
                agent.wait(300)
            shown = admin.get(f"{path}/experts").json()
            status = tessera("agent", "status", "--config", victim.folder / "silo.toml")
        finally:
            for agent in agents:
                agent.kill()
            coordinator.kill()
    assert coordinator.errors == []
    assert sorted(entry["round"] for entry in shown["rounds"]) == [1, 2, 3]
    assert all(entry["members"] == 3 for entry in shown["rounds"])
    assert status.returncode == 0
    assert "summed over" in status.stdout
    config = str(victim.folder / "silo.toml")
    for out, *form in [("routed", "--routed"), ("flat", "--flat")]:
        done = tessera("agent", "export", "--out", victim.folder / out, *form, "--config", config)
        assert done.returncode == 0, done.stderr + done.stdout
