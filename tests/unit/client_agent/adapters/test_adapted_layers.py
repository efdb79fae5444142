"""Adapters in some layers only: equal layouts of client and coordinator, and no other adapted layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from client_agent.adapters.base import lowest_adapted_layer
from client_agent.adapters.frames import random_frames, wrapped_layers
from client_agent.adapters.inject import inject
from client_agent.errors import LayoutMismatch
from client_agent.model.loading import BaseModel
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.maths.adapter import module_of
from schemas.maths.layout import client_layout
from schemas.messages.federations import AdapterPlan

NO_DATA = SiloData(train=(), validation=(), test=())


@pytest.mark.parametrize(
    ("fields", "lowest", "modules"),
    [
        ({"kind": "lora", "layers": 2, "roles": ["q"]}, 2, {"l2.q", "l3.q"}),
        ({"kind": "lora", "layers": [3, 1], "roles": ["v"]}, 1, {"l1.v", "l3.v"}),
        ({"layers": 2, "blocks": 2, "roles": ["q"]}, 2, {"b0.q", "b1.q"}),
        ({"layers": 3, "blocks": 1, "roles": ["q"], "same_architecture_rank": 2}, 1, None),
        ({"layers": 4, "blocks": 4, "roles": ["q"]}, 0, {"b0.q", "b1.q", "b2.q", "b3.q"}),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_client_and_coordinator_lay_out_the_same_tensors(
    tiny: Callable[..., BaseModel],
    model_type: str,
    fields: dict[str, Any],
    lowest: int,
    modules: set[str] | None,
) -> None:
    base, plan = tiny(model_type), AdapterPlan.model_validate({"rank": 4, **fields})
    frames = random_frames(base, plan, 0) if plan.kind == "pq" else {}
    with inject(base, plan, frames, gated=False, seed=0) as adapter:
        profile = Silo(base, NO_DATA, None).profile
        assert adapter.layout == client_layout(plan, profile, frames if plan.kind == "pq" else None)
        assert lowest_adapted_layer(base) == lowest
        expected = modules or {"b0.q", "l1.q", "l2.q", "l3.q"}
        assert {module_of(tensor) for tensor in adapter.layout} == expected
    assert lowest_adapted_layer(base) == base.layers


def test_blocks_divide_the_layers_of_the_plan(tiny: Callable[..., BaseModel]) -> None:
    plan = AdapterPlan(blocks=2, layers=(0, 1, 3))
    assert wrapped_layers(tiny(), plan) == (0, 3)


@pytest.mark.parametrize("layers", [5, (0, 4)])
def test_model_without_planned_layers_is_refused(tiny: Callable[..., BaseModel], layers: Any) -> None:
    with pytest.raises(LayoutMismatch, match="a model of 4 layers has no"):
        inject(tiny(), AdapterPlan(kind="lora", layers=layers), {}, gated=False, seed=0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layers": 0}, "must be a number from 1 to 1024, or a list of layers"),
        ({"layers": [1, 1]}, "must be distinct"),
        ({"layers": 3}, "blocks\n.*at most 3"),
    ],
)
def test_invalid_layers_of_a_plan_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        AdapterPlan.model_validate(fields)


def test_layers_are_sorted_and_survive_json() -> None:
    plan = AdapterPlan.model_validate_json('{"kind": "lora", "layers": [4, 2]}')
    assert AdapterPlan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.layers == (2, 4)
