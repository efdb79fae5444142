"""Requests cut, doubled or trickled, and lost answers: no lost and no doubled update."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.stress.agents import wait_for_the_end
from tests.faults.stress.one_hot import Trial, check, taking_part
from tests.faults.stress.proxy import FAULTS, bad_network
from tests.scene.replica_processes import Coordinator


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_bad_network_loses_and_doubles_no_update(database_url: str, tmp_path: Path) -> None:
    trial = Trial(clients=4, rounds=6)
    coordinator = Coordinator(database_url, tmp_path / "log")
    coordinator.start()
    try:
        with (
            bad_network(coordinator.port, seed=7) as network,
            taking_part(trial, [network.url]) as (federation_id, agents),
        ):
            wait_for_the_end(agents)
            check(trial, database_url, federation_id, agents)
            assert set(network.done) == set(FAULTS)
            assert sum(network.done.values()) > 4 * trial.clients * trial.rounds
    finally:
        coordinator.kill()
    assert coordinator.errors == []
