"""Faults of a message as text."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.messages.faults import complaints, faults_of
from schemas.messages.federations import FederationPlan
from tests.scene.plans import federation_plan


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"strategy": {"name": "fedavg"}}, "name: missing; add it"),
        ({"round": {}}, "round: there is no such field; did you mean rounds?"),
        ({"rounds": {"totl": 3}}, "rounds.totl: there is no such field; did you mean total?"),
        (
            {"signature": {"dp": {"epsilon": 1, "delt": 1}}},
            "delt: there is no such field; did you mean delta?",
        ),
        ({"rounds": {"zzz": 3}}, "rounds.zzz: there is no such field"),
        ({"rounds": {"total": 0}}, "rounds.total: Input should be greater than or equal to 1"),
    ],
)
def test_a_fault_names_its_field_and_suggests_another(plan: dict[str, object], text: str) -> None:
    whole = {"name": "x", "strategy": {"name": "fedavg"}} | plan
    if "missing" in text:
        del whole["name"]
    with pytest.raises(ValidationError) as refused:
        FederationPlan.model_validate(whole)
    assert text in complaints(refused.value, FederationPlan)


@pytest.mark.parametrize(
    ("plan", "texts"),
    [
        (
            {"training": {"learning_rate": -1}},
            ["training.learning_rate: Input should be greater than 0, or 'auto'"],
        ),
        (
            {"training": {"learning_rate": "fast", "steps": 0}, "rounds": {"total": "x"}},
            [
                "training.learning_rate: Input should be a valid number, or 'auto'",
                "training.steps: Input should be greater than or equal to 1",
                "rounds.total: Input should be a valid integer",
            ],
        ),
        ({"adapter": {"roles": ["q", "x"]}}, ["adapter.roles.1: Input should be 'q', 'k'"]),
        ({"strategy": {"name": "fedavg", "options": 3}}, ["strategy.options: Input should be a valid"]),
    ],
)
def test_fault_paths_omit_names_of_unions(plan: dict[str, object], texts: list[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        federation_plan(**plan)
    sentence = complaints(refused.value, FederationPlan)
    assert all(text in sentence for text in texts), sentence
    assert sentence.count(": ") == len(texts)
    for label in ("constrained", "literal", "function-", "[", "JsonValue"):
        assert label not in sentence


class _Circle(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0)]


class _Square(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["square"]
    side: float


class _Drawing(BaseModel):
    shapes: list[Annotated[_Circle | _Square, Field(discriminator="kind")]]
    sizes: dict[str, Annotated[int, Field(ge=1)]] = {}
    place: int | tuple[int, int] | None = None


def test_fault_paths_distinguish_tags_and_keys() -> None:
    drawing = {
        "shapes": [{"kind": "circle", "radius": 0, "sid": 1}, {"kind": "square"}],
        "sizes": {"small": 0},
        "place": [1, "x"],
    }
    with pytest.raises(ValidationError) as refused:
        _Drawing.model_validate(drawing)
    faults = dict(faults_of(refused.value.errors(), _Drawing))
    assert [*faults] == [
        "shapes.0.radius",
        "shapes.0.sid",
        "shapes.1.side",
        "sizes.small",
        "place",
        "place.1",
    ]
    assert faults["shapes.0.sid"] == "there is no such field; did you mean side?"
    assert "shapes.0.constrained" not in complaints(refused.value, None)


def test_many_faults_are_counted() -> None:
    with pytest.raises(ValidationError) as refused:
        _Drawing.model_validate({"shapes": [], "sizes": {f"size{number}": 0 for number in range(25)}})
    assert complaints(refused.value, _Drawing).endswith("; and 5 more")
