"""The model that computes sketches."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.aggregation.store import sketch_model
from schemas.messages.federations import FederationPlan


@pytest.mark.parametrize(
    ("signature", "model"),
    [
        ({}, "pivot-000000000000"),
        ({"model": "small-000000000000"}, "small-000000000000"),
    ],
)
def test_the_plan_names_the_model_of_sketches(signature: dict[str, Any], model: str) -> None:
    plan = FederationPlan.model_validate(
        {
            "name": "x",
            "strategy": {"name": "fedmosaic"},
            "signature": signature,
            "alignment": {"pivot": "pivot-000000000000"},
        }
    )
    assert sketch_model(plan, "own-000000000000") == model
