"""Recipes in a plan: by name or with all fields."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from schemas.messages.recipes import NAMED, Recipe, RecipeName, WirePlan


def test_named_recipes_are_complete_and_classified() -> None:
    assert set(NAMED) == set(get_args(RecipeName))
    assert [name for name, recipe in NAMED.items() if recipe.is_dense] == ["dense", "f16"]
    assert [name for name, recipe in NAMED.items() if recipe.feeds_back] == [
        "int4_served",
        "top10_int8_served",
    ]


def test_a_sparse_recipe_needs_a_reference() -> None:
    with pytest.raises(ValidationError, match="density"):
        Recipe(density=0.5)


def test_a_plan_stores_the_fields_of_a_recipe() -> None:
    spelt = {"reference": "own_last", "density": 1.0, "values": "int4", "block": 64}
    for wire in ({}, {"recipe": "int4_own_last"}, {"recipe": spelt}):
        assert WirePlan.model_validate(wire).model_dump(mode="json")["recipe"] == spelt
    for unknown in ("int5", {"values": "int5"}, {"reference": "own_last", "error_feedback": True}, None):
        with pytest.raises(ValidationError):
            WirePlan.model_validate({"recipe": unknown})


def test_the_default_weights_recipe_follows_the_updates_recipe() -> None:
    recipes = {name: WirePlan(recipe=recipe).weights_recipe for name, recipe in NAMED.items()}
    coded = {name for name, how in recipes.items() if how == "int8_own_last"}
    assert coded == {"bf16", "int8", "int8_own_last", "int4_own_last"}
    assert WirePlan(recipe=NAMED["dense"], weights_recipe="int4_own_last").own_last_recipe == "int4_own_last"
    with pytest.raises(ValidationError, match="must be dense"):
        WirePlan(recipe=NAMED["int4_served"], weights_recipe="int8_own_last")
