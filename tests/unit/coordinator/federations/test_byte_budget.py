"""Byte budgets that no update can keep are refused, with the plan or at enrolment."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.coordinator import Served

PQ = {"rank": 4, "blocks": 1, "roles": ["q", "v"]}  # 40 values
LORA = {"kind": "lora", "rank": 2, "blocks": 1, "roles": ["q", "v"]}
SHAPES = {"q": [100, 100], "v": [50, 100]}  # 2,800 values in 4 layers
SERVED = {"reference": "served", "density": 0.5, "values": "int8"}


@pytest.mark.parametrize(
    ("recipe", "budget", "error"),
    [
        ("dense", 160, "f16 would do, with 80"),
        ("f16", 80, "int8_own_last would do, with 48"),
        ("int8_own_last", 48, "int4_own_last would do, with 28"),
    ],
)
def test_plans_with_an_impossible_byte_budget_are_refused(
    coordinator: Served, recipe: str, budget: int, error: str
) -> None:
    plan = {"name": "x", "strategy": {"name": "fedavg"}, "adapter": PQ}
    wire = {"recipe": recipe, "max_bytes": budget - 1}
    refused = coordinator.admin.post("/v1/federations", json=plan | {"wire": wire})
    assert (refused.status_code, refused.json()["field"]) == (422, "wire.max_bytes")
    assert error in refused.json()["detail"]
    enough = wire | {"max_bytes": budget}
    assert coordinator.admin.post("/v1/federations", json=plan | {"wire": enough}).status_code == 201


@pytest.mark.parametrize(
    ("strategy", "recipe", "budget", "error"),
    [
        ("fedavg", "dense", 4 * 2800, "f16 would do, with 5600"),
        ("fedsa_lora", "dense", 4 * 1600, "f16 would do, with 3200"),  # A alone travels
        ("flora", "dense", 4 * 2800, "f16 would do, with 5600"),
        ("het_lora", "f16", 2 * 2800, "int8_own_last would do"),
        ("ca_pfl", SERVED, 150, "the least that does for this adapter is"),
    ],
)
def test_silos_above_the_byte_budget_are_not_enrolled(
    coordinator: Served, strategy: str, recipe: Any, budget: int, error: str
) -> None:
    wire = {"recipe": recipe, "max_bytes": budget - 1}
    federation_id = coordinator.federation(strategy={"name": strategy}, adapter=LORA, wire=wire)
    token = coordinator.enrolment_token(federation_id, "one")
    refused = coordinator.try_enrol(token, "one", shapes=SHAPES)
    assert (refused.status_code, refused.json()["field"]) == (422, "profile.shapes")
    assert error in refused.json()["detail"]


@pytest.mark.parametrize(
    ("strategy", "recipe", "budget"),
    [
        ("fedavg", "dense", 4 * 2800),
        ("fedsa_lora", "dense", 4 * 1600),
        ("flora", "int4_own_last", 1600),
        ("het_lora", "int4_own_last", 1600),
        ("ca_pfl", SERVED, 600),
    ],
)
def test_silos_within_the_byte_budget_are_enrolled(
    coordinator: Served, strategy: str, recipe: Any, budget: int
) -> None:
    wire = {"recipe": recipe, "max_bytes": budget}
    federation_id = coordinator.federation(strategy={"name": strategy}, adapter=LORA, wire=wire)
    shown = coordinator.enrol(federation_id, "one", shapes=SHAPES).http.get("/v1/me")
    assert shown.status_code == 200
    assert (
        coordinator.admin.get(f"/v1/federations/{federation_id}").json()["plan"]["wire"]["max_bytes"]
        == budget
    )
