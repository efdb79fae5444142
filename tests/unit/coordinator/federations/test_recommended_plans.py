"""The defaults of a federation: what is recommended for its strategy, on the command line and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.federations import routes
from schemas.messages.federations import FederationPlan
from schemas.messages.recommendations import FEDMOSAIC, LORA, completed
from schemas.strategies.registry import strategy_names
from tests.scene.coordinator import Served, slug
from tests.scene.operator import Operator

CREATE = "/v1/federations?recommended=true"


def _plan(**parts: Any) -> dict[str, Any]:
    return {"name": "x", "strategy": {"name": "fedmosaic"}} | parts


@pytest.mark.parametrize(
    ("parts", "adapter"),
    [
        ({}, LORA["adapter"]),
        ({"adapter": {"rank": 4}}, LORA["adapter"] | {"rank": 4}),
        ({"adapter": {"kind": "pq"}}, FEDMOSAIC["adapter"] | {"kind": "pq"}),
        ({"alignment": {"pivot": "tiny-s-3f0c9a1b2c3d"}}, FEDMOSAIC["adapter"]),
        (
            {"alignment": None, "adapter": {"same_architecture_rank": 4}},
            FEDMOSAIC["adapter"] | {"same_architecture_rank": 4},
        ),
        ({"strategy": {"name": "ditto"}, "adapter": {"kind": "pq", "rank": 2}}, {"kind": "pq", "rank": 2}),
        ({"adapter": 3}, 3),
    ],
)
def test_adapter_is_the_recommended_one(parts: dict[str, Any], adapter: object) -> None:
    assert completed(_plan(**parts))["adapter"] == adapter


@pytest.mark.parametrize(
    "plan", [{}, {"strategy": "fedavg"}, {"strategy": {"name": 3}}, {"strategy": {"name": "?"}}]
)
def test_plan_without_a_known_strategy_stays(plan: dict[str, Any]) -> None:
    assert completed(plan) == plan


def test_own_fields_stay_beside_recommended_ones(coordinator: Served, tmp_path: Path) -> None:
    plan = _plan(strategy={"name": "fed_vemoe"}, rounds={"total": 3}, training={"steps": 7})
    created = coordinator.admin.post(CREATE, json=plan).json()["plan"]
    assert (created["rounds"]["total"], created["rounds"]["min_clients"]) == (3, 5)
    assert (created["training"]["steps"], created["training"]["schedule"]) == (7, "linear")
    assert created["privacy"]["secure_sum"]["minimum"] == 5
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    assert Operator(coordinator).json("federation", "create", "--plan", str(file))["plan"] == created


def test_route_without_the_parameter_has_a_plans_defaults(coordinator: Served) -> None:
    created = coordinator.admin.post("/v1/federations", json=_plan()).json()["plan"]
    assert created == json.loads(FederationPlan.model_validate(_plan()).model_dump_json()) | {
        "strategy": created["strategy"]
    }


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("[]", "validation"),
        ("{", "malformed-json"),
        ('{"a":1,"a":2}', "malformed-json"),
        ("[" * 5000, "malformed-json"),
    ],
)
def test_bodies_that_are_no_plan_are_refused(coordinator: Served, body: str, kind: str) -> None:
    refused = coordinator.admin.post(CREATE, content=body, headers={"Content-Type": "application/json"})
    assert slug(refused) == kind


def test_name_and_option_are_refused_together(coordinator: Served) -> None:
    plan = _plan(name="<b>", strategy={"name": "fedmosaic", "options": {"zzz": 1}})
    refused = coordinator.admin.post(CREATE, json=plan).json()
    assert [fault["field"] for fault in refused["errors"]] == ["name", "strategy.options.zzz"]


def test_strategies_are_listed_with_description_and_plan(coordinator: Served) -> None:
    listed = coordinator.person("auditor").get("/v1/strategies").json()["items"]
    assert [entry["name"] for entry in listed] == list(strategy_names())
    for entry in listed:
        assert entry["summary"].endswith("."), entry["name"]
        created = coordinator.admin.post(CREATE, json=_plan(strategy={"name": entry["name"]})).json()["plan"]
        assert entry["plan"] | {"name": "x"} == created


def test_a_broken_package_leaves_the_other_strategies_listed(
    coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "usable", lambda: ["half-way", "fedavg"])
    listed = coordinator.person("auditor").get("/v1/strategies").json()["items"]
    assert [strategy["name"] for strategy in listed] == ["fedavg"]
