"""A federation with a bank of experts, with agents as processes: one is killed, all export what they use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.agents import prepare_agent, tessera
from tests.served import Served
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_agents_share_a_bank_and_export_it(
    database_url: str, serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(database_url, tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(
        strategy={"name": "fed_vemoe", "options": {"experts": 2, "top_m": 3, "explore_rounds": 1}},
        rounds={"total": 3, "min_clients": 3, "collect_seconds": 300},
        training={"steps": 6, "max_length": 64, "learning_rate": 0.003},
        adapter={"kind": "lora", "rank": 4, "roles": ["q", "v"]},
        privacy={"secure_sum": {"minimum": 3}},
    )
    served.admin.post(f"/v1/federations/{federation_id}/start")
    agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name), silo="aster")
        for name in ("aster", "birch", "cedar")
    ]
    for agent in agents:
        agent.start()
    victim = agents[0]
    wait_until(lambda: victim.file(2, "bank.json"), seconds=240, what="the second round")
    victim.kill()
    victim.start()
    for agent in agents:
        agent.wait(300)
    shown = served.admin.get(f"/v1/federations/{federation_id}/experts").json()
    assert sorted(entry["round"] for entry in shown["rounds"]) == [1, 2, 3]
    assert all(entry["members"] == 3 for entry in shown["rounds"])
    config = str(victim.folder / "silo.toml")
    exports = [("routed", "--routed"), ("flat", "--flat")]
    for out, *form in exports:
        done = tessera("agent", "export", "--out", victim.folder / out, *form, "--config", config)
        assert done.returncode == 0, done.stderr + done.stdout
    status = tessera("agent", "status", "--config", config)
    assert status.returncode == 0
    assert "summed over" in status.stdout
