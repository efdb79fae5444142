"""The model that computes sketches."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.aggregation.store import sketch_model
from tests.scene.plans import federation_plan


@pytest.mark.parametrize(
    ("signature", "model"),
    [
        ({}, "pivot-000000000000"),
        ({"model": "small-000000000000"}, "small-000000000000"),
    ],
)
def test_the_plan_names_the_model_of_sketches(signature: dict[str, Any], model: str) -> None:
    plan = federation_plan("fedmosaic", signature=signature, alignment={"pivot": "pivot-000000000000"})
    assert sketch_model(plan, "own-000000000000") == model
