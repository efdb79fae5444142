"""Which values of an update travel, against what, and in how few bits. Knows no bytes."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from schemas.messages.base import Digest, Strict, wrong

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

WeightsRecipeName = Literal["dense", "int8_own_last", "int4_own_last"]
"""How an agent asks for its weights: whole, or as the difference to its last update that counts."""


class Recipe(Strict):
    """How an update's values travel.

    What travels is the difference to `reference`: nothing (`none`), the client's last update that counts
    (`own_last`), or the weights it was served for the round (`served`). Of every tensor's values the share
    `density` is sent, in `values`; the integers have one scale per `block` values.

    A recipe without a reference, whole, in f32 or f16, is a dense body: one plain tensor per tensor.
    """

    reference: Reference = "none"
    density: Annotated[float, Field(gt=0, le=1)] = 1.0
    values: ValueFormat = "f32"
    block: Literal[64, 128] = 64

    @model_validator(mode="after")
    def _what_is_not_sent_is_somewhere(self) -> Self:
        if self.density < 1 and self.reference == "none":
            raise wrong("must be 1 without a reference, which says what is not sent", "density")
        return self

    @property
    def is_dense(self) -> bool:
        """Whether bodies of this recipe are plain tensors."""
        return self.reference == "none" and self.values in ("f32", "f16")

    @property
    def feeds_back(self) -> bool:
        """Whether what was lost is added to the next update; with `own_last` the next difference has it."""
        return self.reference == "served" and (self.density < 1 or self.values != "f32")


class SentRecipe(Recipe):
    """The recipe of one body: `against` is the digest of its reference, null where there is none."""

    against: Digest | None

    @property
    def recipe(self) -> Recipe:
        """The recipe without what is this body's own."""
        return Recipe.model_validate(self.model_dump(exclude={"against"}))


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
"""The recipes that have a name; a plan may spell out another."""


def _resolved(named: object) -> object:
    return NAMED.get(named, named) if isinstance(named, str) else named  # type: ignore[call-overload]


ON_REQUEST: Final = {
    name: made for name, made in NAMED.items() if made.reference != "served" and not made.is_dense
}
"""What weights may be asked for in: they are what `served` refers to, and dense is how they are stored."""

NamedRecipe = Annotated[Recipe, BeforeValidator(_resolved, json_schema_input_type=RecipeName | Recipe)]
"""A recipe, or the name of one; kept spelt out, so that no later table changes what it means."""


_DENSE_IN: dict[object, RecipeName] = {"float32": "dense", "float16": "f16"}


def _is_unset(value: int | None) -> bool:
    """Leave a budget that nobody set out of a plan: agents and digests that know of none stay as they are."""
    return value is None


class WirePlan(Strict):
    """How updates travel: by a recipe, by its name or spelt out, compressed with zstd or not.

    `weights_recipe` is how agents ask for their weights, where they can: `int8_own_last`, but dense where
    updates are dense, or differences to the weights, which both sides then need to the bit. A plan may say
    `dtype` instead of `recipe`, float32 or float16, as those do that are older than recipes: dense bodies.

    `max_bytes` is what the values of an update, their scales and places have at most. The density of a sparse
    recipe gives way to it; where that is not enough, silos are refused before anything is trained. Updates
    that have to be sent whole exceed it.
    """

    recipe: NamedRecipe = NAMED["int4_own_last"]
    weights_recipe: WeightsRecipeName | None = None
    compression: Literal["zstd", "none"] = "zstd"
    max_bytes: Annotated[int, Field(ge=1, le=2**40)] | None = Field(default=None, exclude_if=_is_unset)

    @model_validator(mode="before")
    @classmethod
    def _a_dtype_means_dense(cls, said: object) -> object:
        if not isinstance(said, dict) or "recipe" in said or said.get("dtype") not in _DENSE_IN:
            return said
        rest = {name: value for name, value in said.items() if name != "dtype"}
        return rest | {"recipe": _DENSE_IN[said["dtype"]]}

    @model_validator(mode="after")
    def _weights_follow_updates(self) -> Self:
        needs_all = self.recipe.is_dense or self.recipe.reference == "served"
        if self.weights_recipe is None:
            object.__setattr__(self, "weights_recipe", "dense" if needs_all else "int8_own_last")
        elif self.recipe.reference == "served" and self.weights_recipe != "dense":
            raise wrong("must be dense: updates are differences to the weights", "weights_recipe")
        return self

    @property
    def asked_for(self) -> WeightsRecipeName:
        """How agents ask for their weights, resolved."""
        return self.weights_recipe or "dense"
