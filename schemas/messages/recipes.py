"""Recipes: the selection, reference and number format of the values of an update."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from schemas.messages.base import Digest, Strict, field_error

Reference = Literal["none", "own_last", "served"]
ValueFormat = Literal["f32", "f16", "bf16", "int8", "int4"]
RecipeName = Literal[
    "dense",
    "f16",
    "bf16",
    "int8",
    "int8_own_last",
    "int4_own_last",
    "int4_served",
    "top10_int8_served",
]

WeightsRecipeName = Literal["dense", "int8", "int4", "int8_own_last", "int4_own_last"]
"""Recipes of served weights: dense, the difference to the weights served before, or to the client's last
counted update.
"""


class Recipe(Strict):
    """The encoding of an update's values.

    A recipe without reference, with density 1, in f32 or f16 is dense: a plain safetensors file.
    """

    reference: Reference = "none"
    """The reference of differences: none, the client's last counted update, or the weights served for
    the round.
    """
    density: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of each tensor's values that is sent, the largest first."""
    values: ValueFormat = "f32"
    """The number format; integer formats have one scale per `block` values."""
    block: Literal[64, 128] = 64
    """The number of values that share a scale."""

    @model_validator(mode="after")
    def _sparse_updates_have_a_reference(self) -> Self:
        if self.density < 1 and self.reference == "none":
            raise field_error("must be 1 without a reference: values that are not sent need one", "density")
        return self

    @property
    def is_dense(self) -> bool:
        """Whether bodies of this recipe are plain tensors."""
        return self.reference == "none" and self.values in ("f32", "f16")

    @property
    def feeds_back(self) -> bool:
        """Whether the encoding error is added to the next update; `own_last` differences include it."""
        return self.reference == "served" and (self.density < 1 or self.values != "f32")


class SentRecipe(Recipe):
    """The recipe of one body.

    `against` is the digest of its reference, null if there is none. `rank` is that of A and B where clients
    may differ in rank, since streams have no shapes; a reference of another rank is cut, or padded with
    zeros, to it.
    """

    against: Digest | None
    rank: Annotated[int, Field(ge=1)] | None = None

    @property
    def recipe(self) -> Recipe:
        """Return the recipe as the plan has it."""
        return Recipe.model_validate(self.model_dump(exclude={"against", "rank"}))


NAMED: Final[dict[RecipeName, Recipe]] = {
    "dense": Recipe(),
    "f16": Recipe(values="f16"),
    "bf16": Recipe(values="bf16"),
    "int8": Recipe(values="int8"),
    "int8_own_last": Recipe(reference="own_last", values="int8"),
    "int4_own_last": Recipe(reference="own_last", values="int4"),
    "int4_served": Recipe(reference="served", values="int4"),
    "top10_int8_served": Recipe(reference="served", density=0.1, values="int8"),
}
"""Named recipes; a plan may define another as an object."""


def _resolved(named: object) -> object:
    return NAMED.get(named, named) if isinstance(named, str) else named  # type: ignore[call-overload]


ON_REQUEST: Final = {
    name: recipe for name, recipe in NAMED.items() if recipe.reference != "served" and not recipe.is_dense
}
"""Recipes of weights on request. `served` would refer to the weights themselves; dense is the stored form."""

OwnLastName = Literal["int8_own_last", "int4_own_last"]
_OWN_LAST: Final[dict[WeightsRecipeName, OwnLastName]] = {
    "int8_own_last": "int8_own_last",
    "int4_own_last": "int4_own_last",
}

SERVED_DIFFERENCES: Final[dict[WeightsRecipeName, Recipe]] = {
    "int8": Recipe(reference="served", values="int8"),
    "int4": Recipe(reference="served", values="int4"),
}
"""Recipes in which weights are published: differences to what the client was served before."""

NamedRecipe = Annotated[Recipe, BeforeValidator(_resolved, json_schema_input_type=RecipeName | Recipe)]
"""A recipe or its name; stored as an object, so that its meaning is fixed."""


class WirePlan(Strict):
    """The recipes and the compression of updates and weights."""

    recipe: NamedRecipe = NAMED["int4_own_last"]
    """The recipe of updates: a name or an object. Dense updates are accepted under every plan."""
    weights_recipe: WeightsRecipeName | None = None
    """The recipe of weights. `int8` and `int4`: the coordinator publishes a difference in 8 or 4 bits, and
    the new weights are exactly the client's last weights plus this difference. `int8_own_last` and
    `int4_own_last`: agents request the difference to their last update, and train from rounded weights.
    null = `int8_own_last`, or `dense` where updates are dense or differences to the weights.
    """
    compression: Literal["zstd", "none"] = "zstd"
    """The compression of tensor bodies."""
    max_bytes: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """The largest size in bytes of an update's values with their scales and positions; null = no limit. The
    density of a sparse recipe is lowered to fit; where that is not enough, clients are refused before
    training. Updates that must be sent complete may exceed the limit.
    """

    @model_validator(mode="after")
    def _weights_follow_updates(self) -> Self:
        # Differences to the weights need them to the bit on both sides.
        needs_all = self.recipe.is_dense or self.recipe.reference == "served"
        if self.weights_recipe is None:
            object.__setattr__(self, "weights_recipe", "dense" if needs_all else "int8_own_last")
        elif self.recipe.reference == "served" and self.weights_recipe in _OWN_LAST:
            raise field_error(
                "must be dense, int8 or int4: updates are differences to the weights, which both sides then "
                "need to the bit",
                "weights_recipe",
            )
        return self

    @property
    def own_last_recipe(self) -> OwnLastName | None:
        """Return the recipe by which agents request differences to their last update; None = they do not."""
        return _OWN_LAST.get(self.weights_recipe or "dense")

    @property
    def served_difference(self) -> Recipe | None:
        """Return the recipe in which weights are published; None = as they were computed."""
        return SERVED_DIFFERENCES.get(self.weights_recipe or "dense")
