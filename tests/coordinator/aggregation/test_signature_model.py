"""Whose model a signature comes from."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.aggregation.store import signature_model
from schemas.messages.federations import FederationPlan


@pytest.mark.parametrize(
    ("signature", "model"),
    [
        ({}, "pivot-0"),
        ({"model": "small-0"}, "small-0"),
        ({"kind": "representation"}, "own-0"),
        ({"kind": "representation", "model": "small-0"}, "own-0"),
    ],
)
def test_representations_of_different_models_are_not_compared(signature: dict[str, Any], model: str) -> None:
    plan = FederationPlan.model_validate(
        {
            "name": "x",
            "strategy": {"name": "fedmosaic"},
            "signature": signature,
            "alignment": {"pivot": "pivot-0"},
        }
    )
    assert signature_model(plan, "own-0") == model
