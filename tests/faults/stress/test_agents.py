"""Undisturbed trials: their agents find no fault, and what is stored passes the checks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.stress import one_hot, summed
from tests.faults.stress.agents import wait_for_the_end
from tests.scene.coordinator import Served


def test_an_undisturbed_trial_passes_its_checks(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    database_url, trial = fresh_database("sqlite"), one_hot.Trial(clients=2, rounds=2, rank=60)
    served = serve(database_url, tick_seconds=0.02)
    with one_hot.taking_part(trial, [served.url]) as (federation_id, agents):
        wait_for_the_end(agents)
        one_hot.check(trial, database_url, federation_id, agents)


@pytest.mark.slow
def test_an_undisturbed_summed_trial_passes_its_checks(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    database_url = fresh_database("sqlite")
    trial = summed.SummedTrial(clients=3, rounds=2, rank=8, spoilt=2)
    served = serve(database_url, tick_seconds=0.02)
    with summed.summing(trial, [served.url]) as (federation_id, agents, admin):
        summed.go_on_to_the_end(federation_id, agents, admin)
        summed.check(trial, database_url, federation_id, agents)
