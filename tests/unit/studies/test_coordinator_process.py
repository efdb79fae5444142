"""The coordinator of a simulation: kill and restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import CoordinatorStopped
from client_agent.transport.admin_client import Operator
from studies.coordinator_process import CoordinatorProcess


@pytest.mark.slow
def test_a_killed_coordinator_restarts_with_its_database(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    try:
        coordinator.start()
        process = coordinator.process
        with Operator(coordinator.url, coordinator.token) as operator:
            created = operator.post("/v1/federations", {"name": "wards", "strategy": {"name": "fedavg"}})
        coordinator.kill()
        coordinator.start()
        assert coordinator.process != process
        with Operator(coordinator.url, coordinator.token) as operator:
            assert operator.get(f"/v1/federations/{created['id']}")["id"] == created["id"]
    finally:
        coordinator.stop()


def test_a_coordinator_without_process_cannot_be_killed(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with pytest.raises(CoordinatorStopped):
        coordinator.kill()
    coordinator.stop()
