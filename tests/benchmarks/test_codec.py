"""The codec's benchmark runs, at a size that means nothing, and reports every recipe."""

from __future__ import annotations

from benchmarks import codec


def test_every_recipe_is_measured_within_its_bound() -> None:
    found = codec.measure(1000)
    assert [one["recipe"] for one in found["recipes"]] == list(codec.RECIPES)
    for one in found["recipes"]:
        assert 0 < one["bytes_per_value"] <= one["bound_per_value"]
        assert 0 <= one["relative_error"] < 1
