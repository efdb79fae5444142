"""One answer lists all faults of a plan, each with the path of its field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.coordinator import Served
from tests.scene.operator import Operator


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        (
            {"training": {"learning_rate": 0, "steps": 0}, "rounds": {"totl": 3}},
            ["rounds.totl", "training.learning_rate", "training.steps"],
        ),
        (
            {"strategy": {"name": "fedmosiac"}, "rounds": {"totl": 3}},
            ["rounds.totl", "strategy.name"],
        ),
        (
            {"strategy": {"name": "fedmosaic", "options": {"temprature": 1, "mix": "x", "zzz": 1}}},
            ["strategy.options.mix", "strategy.options.temprature", "strategy.options.zzz"],
        ),
        (
            {
                "strategy": {"name": "fedavg"},
                "privacy": {"secure_sum": {"minimum": 5}},
                "rounds": {"min_clients": 2},
                "wire": {"recipe": "int8_own_last"},
                "adapter": {"kind": "lora"},
            },
            ["rounds.min_clients", "wire.recipe"],
        ),
    ],
)
def test_one_answer_lists_all_faults_of_a_plan(
    coordinator: Served, plan: dict[str, Any], fields: list[str]
) -> None:
    body = {"name": "x", "strategy": {"name": "fedavg"}} | plan
    refused = coordinator.admin.post("/v1/federations", json=body)
    problem = refused.json()
    assert refused.status_code == 422, problem
    assert sorted(fault["field"] for fault in problem["errors"]) == fields
    assert all(f"{field}: " in problem["detail"] for field in fields)
    assert problem["field"] == problem["errors"][0]["field"]


def test_the_create_command_shows_all_faults(coordinator: Served) -> None:
    create = ("federation", "create", "--name", "x", "--strategy", "fedavg")
    shown = Operator(coordinator)(*create, "--steps", "0", "--rank", "0", "--rounds", "0", fails=True)
    for field in ("training.steps", "adapter.rank", "rounds.total"):
        assert f"{field}: Input should be greater than or equal to 1" in shown
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
