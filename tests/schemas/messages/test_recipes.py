"""Recipes in a plan: by name or spelt out."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from schemas.messages.recipes import NAMED, Recipe, RecipeName, WirePlan


def test_every_name_is_a_recipe_and_dense_is_plain_tensors() -> None:
    assert set(NAMED) == set(get_args(RecipeName))
    assert [name for name, recipe in NAMED.items() if recipe.is_dense] == ["dense", "f16"]
    assert [name for name, recipe in NAMED.items() if recipe.feeds_back] == [
        "int4_served",
        "top10_int8_served",
    ]


def test_what_is_left_out_needs_a_reference() -> None:
    with pytest.raises(ValidationError, match="density"):
        Recipe(density=0.5)


def test_a_plan_says_a_recipe_by_name_or_spelt_out_and_keeps_it_spelt_out() -> None:
    spelt = {"reference": "own_last", "density": 1.0, "values": "int4", "block": 64}
    for said in ({}, {"recipe": "int4_own_last"}, {"recipe": spelt}):
        assert WirePlan.model_validate(said).model_dump(mode="json")["recipe"] == spelt
    for unknown in ("int5", {"values": "int5"}, {"reference": "own_last", "error_feedback": True}, None):
        with pytest.raises(ValidationError):
            WirePlan.model_validate({"recipe": unknown})


def test_weights_are_asked_for_whole_where_updates_are_whole_or_differences_to_them() -> None:
    asked = {name: WirePlan(recipe=recipe).weights_recipe for name, recipe in NAMED.items()}
    coded = {name for name, how in asked.items() if how == "int8_own_last"}
    assert coded == {"bf16", "int8", "int8_own_last", "int4_own_last"}
    assert WirePlan(recipe=NAMED["dense"], weights_recipe="int4_own_last").own_last_recipe == "int4_own_last"
    with pytest.raises(ValidationError, match="must be dense"):
        WirePlan(recipe=NAMED["int4_served"], weights_recipe="int8_own_last")
