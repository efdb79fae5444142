"""Two replicas on PostgreSQL, one frozen beyond its lease, one killed: the rounds of one replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.stress import replicas
from tests.faults.stress.one_hot import Trial
from tests.faults.stress.summed import SummedTrial


@pytest.mark.long
@pytest.mark.timeout(600)
def test_frozen_and_killed_replicas_publish_the_same_rounds(
    fresh_database: Callable[[str], str], tmp_path: Path
) -> None:
    trial = Trial(clients=4, rounds=30)
    alone = tmp_path / "alone"
    alone.mkdir()
    published = replicas.undisturbed(fresh_database("postgres"), alone, trial)
    havoc = replicas.frozen_and_killed(fresh_database("postgres"), tmp_path, trial)
    assert havoc.published == published
    assert havoc.frozen_at == ["claim-committed", "block-staged", "update-written"]
    assert havoc.killed_at == ["publication-written", "update-committed"]
    assert havoc.overtaken >= 2, "who is frozen while it aggregates must find that another did its work"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_replica_frozen_during_a_sum_is_overtaken(
    fresh_database: Callable[[str], str], tmp_path: Path
) -> None:
    trial = SummedTrial(rounds=6)
    assert replicas.frozen_while_opening(fresh_database("postgres"), tmp_path, trial) == 1
