"""Rounds of a federation that sums, with agents that train, against a real coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.training.silo import Silo
from tests.client_agent.secure_sum.summed_agents import agents_of, plan
from tests.served import Served
from tests.taking_part import wait_for


@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_a_round_is_summed(masking: str, served: Served, silo: Silo, tmp_path: Path) -> None:
    with agents_of(served, silo, tmp_path, plan(3, masking=masking), 3) as agents:
        agents.start()
        agents.train()
        assert not agents.sum()
        wait_for(served, agents.federation_id, 1, "published")
