"""Parts of a round's publication: strategies and plans declare them, and they work in one order."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.aggregation.parts import PARTS, parts_of
from coordinator.errors import Invalid
from coordinator.strategies.opening import open_plan
from coordinator.strategies.parts import PartName, declared_parts, require_compatible_parts
from schemas.messages.federations import FederationPlan

SUM = {"privacy": {"secure_sum": {}}}
DIFFERENCE = {"wire": {"weights_recipe": "int8"}}


def opened(strategy: str, options: dict[str, Any] | None = None, **fields: Any) -> Any:
    return open_plan(
        FederationPlan.model_validate(
            {
                "name": "f",
                "strategy": {"name": strategy, "options": options or {}},
                "rounds": {"min_clients": 3, "total": 3},
            }
            | fields
        )
    )


def test_part_names_have_their_objects() -> None:
    assert list(PARTS) == list(PartName)


@pytest.mark.parametrize(
    ("strategy", "options", "fields", "parts"),
    [
        ("fedavg", {}, {}, []),
        ("fedmosaic", {}, {}, [PartName.CHANGES]),
        ("fedmosaic", {"distil": {}}, {}, [PartName.CHANGES, PartName.OUTPUTS]),
        ("fedavg", {}, DIFFERENCE, [PartName.SERVED_DIFFERENCE]),
        ("fedavg", {}, SUM, [PartName.SUM]),
        ("fedavg", {}, SUM | DIFFERENCE, [PartName.SUM]),
        ("fed_vemoe", {}, SUM, [PartName.SUM, PartName.BANK]),
        ("flora", {}, {"adapter": {"kind": "lora"}}, [PartName.BASE_DELTA]),
    ],
)
def test_strategy_and_plan_determine_parts_and_order(
    strategy: str, options: dict[str, Any], fields: dict[str, Any], parts: list[PartName]
) -> None:
    plan = opened(strategy, options, **fields)
    assert declared_parts(plan) == parts
    assert [type(part) for part in parts_of(plan)] == [PARTS[name] for name in parts]


def test_a_base_delta_excludes_served_differences() -> None:
    with pytest.raises(Invalid, match=r"wire\.weights_recipe: flora serves changes of the base model"):
        require_compatible_parts(opened("flora", adapter={"kind": "lora"}, **DIFFERENCE))


def test_parts_serve_one_round() -> None:
    plan = opened("fedmosaic")
    assert parts_of(plan)[0] is not parts_of(plan)[0]
