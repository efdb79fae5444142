"""Rows 28 to 41 for updates in few bits: positions, scales, codes, lengths, recipes, references.

One input stands for each refusal of the decoder, whose other inputs are in tests/unit/schemas/wire.
The adapter has four values and two, of which half travel: two codes and one, a scale and a bitmap for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schemas.messages.recipes import NAMED, Recipe
from schemas.wire.compress import compress
from schemas.wire.envelope import Array
from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import RECIPE, Scene
from tests.scene.rounds import coded_body, put, values

Streams = dict[str, Array]
_NO_DIGEST = "sha256:" + "0" * 64


def make(scene: Scene, change: Callable[[Streams], object], **members: Any) -> bytes:
    base = members.pop("base", scene.base)
    return coded_body(scene.silo, 1, base, values(1.0), RECIPE, against=scene.base, change=change, **members)[
        0
    ]


def streams(change: Callable[[Streams], object]) -> Callable[[Scene], Any]:
    return lambda scene: put(scene.silo, 1, make(scene, change))


def stream(name: str, *items: float, dtype: type = np.uint8) -> Callable[[Scene], Any]:
    """Put other items into a stream."""
    return streams(lambda arrays: arrays.update({name: np.array(items, dtype)}))


def scales(*items: float) -> Callable[[Scene], Any]:
    return stream("scales", *items, dtype=np.float16)


def manifest(**members: Any) -> Callable[[Scene], Any]:
    return lambda scene: put(scene.silo, 1, make(scene, lambda _: None, **members))


def recipe(declared: Recipe = RECIPE, **members: Any) -> Callable[[Scene], Any]:
    """Declare another recipe of the same streams; ... leaves a member out."""

    def send(scene: Scene) -> Any:
        document = declared.model_dump() | {"against": scene.base} | members
        return manifest(recipe={name: value for name, value in document.items() if value is not ...})(scene)

    return send


def _unfolding(scene: Scene) -> Any:
    body = make(scene, lambda arrays: arrays.update(codes=np.zeros(60 * 2**20, np.uint8)))
    return put(scene.silo, 1, compress(body), "zstd")


def _listed(scene: Scene) -> Any:
    body = make(scene, lambda _: None, recipe={"values": "int4"})
    before, after = b'\\"recipe\\":{\\"values\\":\\"int4\\"}', b'\\"recipe\\":[\\"values\\",\\"int4\\"]'
    assert before in body
    return put(scene.silo, 1, body.replace(before, after))


def _square(scene: Scene) -> Any:
    return streams(lambda arrays: arrays.update(codes=np.zeros((1, 2), np.uint8)))(scene)


def _more_names(scene: Scene) -> Any:
    return streams(lambda arrays: arrays.update({"b0.q.P": np.ones((2, 2), np.float32)}))(scene)


PLACES = [
    Case(33, "no places at all", streams(lambda arrays: arrays.pop("positions")), 422, "sparse-index"),
    Case(33, "60 MiB of codes", _unfolding, 422, "sparse-index"),
]
NUMBERS = [
    Case(34, "negative", scales(1, -1), 422, "quant-scale"),
    Case(34, "the largest there is", scales(1, 65504), 422, "norm-exceeded"),
    Case(34, "a half byte behind the last code", stream("codes", 0x77, 0x17), 422, "quant-code"),
]
ABOUT = [
    Case(28, "streams beside tensors", _more_names, 422, "tensor-schema"),
    Case(29, "a stream of two dimensions", _square, 422, "tensor-schema"),
    Case(30, "scales in float32", stream("scales", 1, 1e38, dtype=np.float32), 422, "tensor-dtype"),
    Case(37, "streams that are said to be dense", manifest(recipe={}), 422, "recipe"),
    Case(37, "a recipe that there is not", recipe(values="int3"), 422, "recipe"),
    Case(37, "a recipe with more", recipe(error_feedback=True), 422, "recipe"),
    Case(37, "no reference named", recipe(against=...), 422, "recipe"),
    Case(37, "a reference that is no digest", recipe(against="x"), 422, "recipe"),
    Case(37, "another recipe than the plan's", recipe(NAMED["int8_own_last"]), 422, "recipe"),
    Case(37, "another density than the plan's", recipe(density=1.0), 422, "recipe"),
    Case(37, "a recipe that is a list", _listed, 422, "metadata"),
    Case(37, "streams of another round", manifest(round=2), 422, "metadata"),
    Case(41, "streams of another base", manifest(base=_NO_DIGEST), 412, "base-mismatch"),
    Case(41, "another reference", recipe(against=_NO_DIGEST), 412, "reference-mismatch"),
    Case(41, "no reference", recipe(against=None), 412, "reference-mismatch"),
]
CASES = [*PLACES, *NUMBERS, *ABOUT]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_recipe_is_refused(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)
