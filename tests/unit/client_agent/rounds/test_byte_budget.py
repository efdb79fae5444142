"""A plan's byte budget with real agents: sparse updates fit it, impossible budgets are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_agent.rounds.byte_budget import BudgetTooSmall, require_affordable
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.steps import take_part
from client_agent.storage.round_folder import RECEIPT, RESIDUAL, SENT, TRAINED, WEIGHTS
from schemas.messages.rounds import RoundBrief
from tests.scene.agent_rounds import (
    LORA,
    SERVED,
    LoneSilo,
    layout_of,
    opened_update,
    reference_of,
    stored_tensors,
    trained_tensors,
    update_difference,
)
from tests.scene.agents import Enrolled
from tests.scene.coordinator import Served

OWN_LAST = {"reference": "own_last", "density": 0.5, "values": "int8"}


def octets(folder: Any) -> int:
    with opened_update(folder) as body:
        return sum(
            body.length(name) * width for name, width in (("codes", 1), ("scales", 2), ("positions", 1))
        )


def with_wire(brief: RoundBrief, **changes: Any) -> RoundBrief:
    return RoundBrief.model_validate(
        brief.model_dump(mode="json") | {"wire": brief.wire.model_dump(mode="json") | changes}
    )


@pytest.mark.parametrize("recipe", [SERVED, OWN_LAST])
def test_sparse_update_sends_largest_values_within_budget(
    served: Served, participant: Enrolled, recipe: dict[str, Any]
) -> None:
    scene = LoneSilo(served, participant, adapter=LORA, wire={"recipe": recipe, "max_bytes": 500})
    first, two = scene.run_rounds(), scene.run_rounds()
    for folder in (first, two):
        assert 470 < octets(folder) <= 500
    before = stored_tensors(two, WEIGHTS) if recipe is SERVED else stored_tensors(first, SENT)
    lost = stored_tensors(first, RESIDUAL) if recipe is SERVED else {}
    state, sent = scene.stored(layout_of(two)), update_difference(two)
    for name, values in trained_tensors(two).items():
        assert (state[name] == before[name] + sent[name]).all()
        target = values - before[name] + lost.get(name, np.float32(0))
        unsent = np.abs(target)[sent[name] == 0]
        assert unsent.max() > 0
        if sent[name].any():
            assert np.abs(target)[sent[name] != 0].max() >= unsent.max()


def test_budget_beyond_need_changes_no_byte(served: Served, participant: Enrolled) -> None:
    scene = LoneSilo(served, participant, adapter=LORA, wire={"recipe": SERVED, "max_bytes": 10**6})
    for name, values in update_difference(scene.run_rounds()).items():
        assert np.count_nonzero(values) == min(values.size, int(np.ceil(0.2 * values.size))), name


@pytest.mark.parametrize(
    ("strategy", "wire", "error"),
    [
        ("fedavg", {"recipe": "dense", "max_bytes": 5000}, "int8_own_last would do"),
        ("fedavg", {"recipe": "int8_own_last", "max_bytes": 3000}, "int4_own_last would do"),
        ("fedavg", {"recipe": "int4_own_last", "max_bytes": 900}, '"values": "int8"} would do'),
        ("fedavg", {"recipe": SERVED, "max_bytes": 50}, "the least that does"),
        ("flora", {"recipe": "dense", "max_bytes": 5000}, "int8_own_last would do"),
        ("het_lora", {"recipe": "f16", "max_bytes": 3000}, "int4_own_last would do"),
    ],
)
def test_agent_refuses_budget_below_its_adapters_minimum(
    served: Served, participant: Enrolled, strategy: str, wire: dict[str, Any], error: str
) -> None:
    scene = LoneSilo(served, participant, adapter=LORA, strategy={"name": strategy})
    brief = scene.brief()
    layout = scene.participant.trainer.layout(OpenedBrief.of(brief), None)
    enough = with_wire(brief, weights_recipe=None, **wire | {"max_bytes": 10**6})
    require_affordable(OpenedBrief.of(enough), layout)
    with pytest.raises(BudgetTooSmall, match="Nothing was trained") as refused:
        require_affordable(OpenedBrief.of(with_wire(brief, weights_recipe=None, **wire)), layout)
    assert error in str(refused.value)


def test_density_below_priors_is_refused_before_join(served: Served, participant: Enrolled) -> None:
    options = {"density": 0.001, "warm_rounds": 0}
    recipe = {"reference": "served", "density": 0.9, "values": "int8"}
    scene = LoneSilo(
        served,
        participant,
        adapter=LORA,
        strategy={"name": "ca_pfl", "options": options},
        wire={"recipe": recipe},
    )
    brief = scene.brief()
    with pytest.raises(BudgetTooSmall, match="no room beside this adapter's priors"):
        take_part(scene.participant, brief)
    assert not scene.participant.workspace.rounds.open(brief.round).has(TRAINED)
    shown = served.admin.get(f"/v1/federations/{scene.federation_id}/rounds/{brief.round}").json()
    assert shown["counts"]["joined"] == 0


def test_whole_update_over_budget_is_sent_with_warning(
    served: Served, participant: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoneSilo(served, participant, adapter=LORA, wire={"recipe": OWN_LAST, "max_bytes": 500})
    first = scene.run_rounds()
    assert first.has(RECEIPT)
    first.forget(SENT)
    two = scene.run_rounds()
    assert reference_of(two) is None
    assert "round 2: whole update of" in caplog.text
    assert "exceeds wire.max_bytes 500" in caplog.text
    assert reference_of(scene.run_rounds()) is not None
