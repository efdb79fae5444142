"""Planted faults, all of which the simulation must find."""

from __future__ import annotations

import pytest

from tests.faults.fault_simulation.campaign import MOST_TRIES, hunt
from tests.faults.fault_simulation.planting import MUTANTS, Mutant


@pytest.mark.usefixtures("prepared_process")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    outcome = hunt(mutant)
    assert outcome.outcome is not None, f"{mutant.name} lived through {MOST_TRIES} schedules"
