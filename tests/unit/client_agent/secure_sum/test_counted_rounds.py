"""A round with counts, with agents that train, against a real coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from client_agent.rounds import summed_steps
from client_agent.rounds.sum_input import RoundResult, SumInput
from client_agent.storage.round_folder import INPUT
from client_agent.training.silo import Silo
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.segments import segments_of
from schemas.strategies.averages import FedAvgOptions
from tests.scene.coordinator import Served
from tests.scene.rounds import wait_for
from tests.unit.client_agent.secure_sum.summed_agents import Agent, agents_of, plan, total_of

GROUPS = ("x0", "reject")


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_agents_are_counted_and_then_summed(
    masking: str, served: Served, silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All reject the shared expert, so that what they learnt of it is in the sum once more."""

    def groups(_: object, __: Sequence[str]) -> tuple[str, ...]:
        return GROUPS

    monkeypatch.setattr(FedAvgOptions, "counts", groups)
    monkeypatch.setattr(summed_steps, "RoundResult", partial(RoundResult, rejects=True))
    with agents_of(served, silo, tmp_path, plan(3, masking=masking), 3) as agents:
        agents.start()
        agents.train()
        assert not agents.sum()
        view = wait_for(served, agents.federation_id, 1, "published")
        sessions = [(session["kind"], session["state"]) for session in view["secure_sum"]["sessions"]]
        assert sessions == [("counts", "done"), ("sum", "done")]
        total = total_of(served, agents.federation_id)
        assert np.array_equal(total, np.sum([_input(agent) for agent in agents.agents], axis=0))
        for agent in agents.agents:
            stored = SumCounts.model_validate_json((agent.folder().path / "counts.json").read_bytes())
            assert stored.groups == {"x0": 3, "reject": 3}
            assert stored.counted == sorted(peer.client for peer in agents.agents)


def _input(agent: Agent) -> np.ndarray:
    federation_plan = agent.participant.session.manifests.plan
    segments = segments_of(federation_plan, agent.layout(), ("reject",))
    assert [segment.name for segment in segments[-3:]] == ["new.A", "new.B", "new.weight"]
    return SumInput.from_bytes(agent.folder().read(INPUT), segments).values.astype(np.int64)
