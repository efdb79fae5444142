"""Strategies that may publish weights as differences."""

from __future__ import annotations

import pytest

from tests.scene.coordinator import Served, slug
from tests.scene.rounds import plan


@pytest.mark.parametrize("strategy", ["flora", "fedex_lora"])
def test_base_deltas_are_served_exactly(coordinator: Served, strategy: str) -> None:
    adapter = {"kind": "lora", "rank": 2, "roles": ["q"]}
    body = plan() | {"strategy": {"name": strategy}, "adapter": adapter, "name": "deltas"}
    answer = coordinator.admin.post("/v1/federations", json=body | {"wire": {"weights_recipe": "int8"}})
    assert (answer.status_code, slug(answer)) == (422, "validation"), answer.text
    assert answer.json()["field"] == "wire.weights_recipe"
    assert "use dense" in answer.json()["detail"]
    created = coordinator.admin.post("/v1/federations", json=body)
    assert created.status_code == 201, created.text
    assert created.json()["plan"]["wire"]["weights_recipe"] not in ("int8", "int4")
