"""Refusals by plan, data and settings precede the join of a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client_agent.daemon import run
from client_agent.errors import AgentError, PivotMissing
from client_agent.privacy.budget import BudgetSpent, TooFewRecords
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.participant import Participant
from client_agent.rounds.sketch import mechanism_for
from client_agent.rounds.steps import take_part
from client_agent.training.silo import Silo
from schemas.messages.sketches import SignaturePlan
from tests.scene.agents import alone_plan, limited_sleep, next_brief
from tests.scene.coordinator import Served

LORA = {"strategy": {"name": "fedavg"}, "adapter": {"kind": "lora", "rank": 4, "roles": ["v"]}}
DP = {"epsilon": 8.0, "releases": 2, "minimum_sample": 12}
FEW = DP | {"minimum_sample": 200}


def joined_count(served: Served, participant: Participant) -> int:
    views = served.rounds(participant.session.federation_id)
    return sum(client["state"] != "invited" for view in views for client in view["clients"])


@pytest.mark.parametrize(
    ("signature", "error"),
    [
        ({"dp": FEW, "probe_examples": 256}, TooFewRecords),
        ({"model": "another-model-0123456789ab"}, PivotMissing),
    ],
)
def test_refusal_by_data_comes_before_the_join(
    served: Served, started: Callable[..., Participant], signature: dict[str, Any], error: type[AgentError]
) -> None:
    participant = started(**(alone_plan() | LORA | {"signature": signature}))
    with pytest.raises(error):
        run(participant, limited_sleep(50))
    with pytest.raises(error):
        take_part(participant, next_brief(participant))
    assert joined_count(served, participant) == 0


@pytest.mark.slow
def test_spent_sketch_budget_is_refused_before_the_join(
    served: Served, started: Callable[..., Participant], silo: Silo
) -> None:
    participant = started(**(alone_plan() | LORA | {"signature": {"dp": DP}}))
    plan = SignaturePlan.model_validate({"dp": DP})
    assert plan.dp is not None
    ledger, mechanism = Ledger(participant.workspace.folder), mechanism_for(silo.data.train, plan, plan.dp)
    for number in (1, 2):
        ledger.write(ledger.priced("fed_0", number, mechanism, plan.dp, None))
    with pytest.raises(BudgetSpent):
        take_part(participant, next_brief(participant))
    assert joined_count(served, participant) == 0
