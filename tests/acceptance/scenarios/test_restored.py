"""A restored backup under agents with newer rounds: refusal, acceptance by persons, and further rounds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.scenarios.test_agents import plan
from tests.scene.agent_processes import AgentProcess, prepare_agent, tessera
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROUNDS = 14
"""So many that the federation is not over before the coordinator stops."""


def accepted(agent: AgentProcess, *options: str) -> subprocess.CompletedProcess[str]:
    return tessera("agent", "accept-restored", "--config", agent.folder / "silo.toml", *options)


def test_agents_refuse_a_restored_coordinator_until_acceptance(
    fresh_database: Callable[[str], str], serve: Callable[..., Served], tmp_path: Path
) -> None:
    url = fresh_database("sqlite")
    file, backup = Path(url.removeprefix("sqlite:///")), tmp_path / "backup.db"
    served = serve(url, tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(
        **plan(rounds={"total": ROUNDS, "min_clients": 2, "collect_seconds": 300})
    )
    agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name))
        for name in ("aster", "birch")
    ]
    served.start_federation(federation_id)
    for agent in agents:
        agent.start()
    wait_until(lambda: agents[0].file(2, "weights.safetensors"), event="the second round")
    backup_run = tessera("backup", str(backup), TESSERA_DATABASE_URL=url)
    assert backup_run.returncode == 0, backup_run.stderr
    later = 2 + next(n for n in range(ROUNDS, 0, -1) if agents[0].file(n, "weights.safetensors"))
    wait_until(lambda: all(a.file(later, "weights.safetensors") for a in agents), event="two more rounds")

    served.stop()
    for beside in ("-journal", "-wal", "-shm"):
        Path(f"{file}{beside}").unlink(missing_ok=True)
    shutil.copy(backup, file)
    port = served.url.rpartition(":")[2]
    restored = serve(url, tick_seconds=0.05, retry_seconds=0.2, port=int(port))
    running = [*agents]
    while running:  # who has delivered to the restored round waits for who has not
        wait_until(lambda: any(_has_ended(a) for a in running), 180, "an agent's end")
        ended = next(agent for agent in running if _has_ended(agent))
        running.remove(ended)
        _accept(ended)
        ended.start()
    for agent in agents:
        agent.wait()
    rounds = restored.rounds(federation_id)
    assert [r["state"] for r in rounds] == ["published"] * ROUNDS
    assert all(r["counts"]["arrived"] == 2 for r in rounds)


def _has_ended(agent: AgentProcess) -> bool:
    assert agent.process is not None
    return agent.process.poll() is not None


def _accept(agent: AgentProcess) -> None:
    assert agent.process is not None
    assert agent.process.returncode == 1, agent.log
    assert "tessera agent accept-restored" in agent.log
    unasked = accepted(agent)
    assert unasked.returncode == 1, "it asks, and nobody answers"
    assert "last accepted here:     round " in unasked.stdout
    assert "the coordinator offers: round " in unasked.stdout
    done = accepted(agent, "--yes")
    assert done.returncode == 0, done.stderr
    assert list((agent.folder / "state").glob("*/earlier/manifest.json-1"))
