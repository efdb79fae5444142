"""The benchmark of the codec at a small size: all recipes."""

from __future__ import annotations

from benchmarks import codec


def test_recipes_are_measured_within_their_bounds() -> None:
    found = codec.measure(1000)
    assert [one["recipe"] for one in found["recipes"]] == list(codec.RECIPES)
    for one in found["recipes"]:
        assert 0 < one["bytes_per_value"] <= one["bound_per_value"]
        assert 0 <= one["relative_error"] < 1
