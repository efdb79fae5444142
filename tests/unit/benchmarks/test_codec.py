"""The benchmark of the codec at a small size: all recipes."""

from __future__ import annotations

from benchmarks import codec


def test_recipes_are_measured_within_their_bounds() -> None:
    report = codec.measure(1000)
    assert [measurement["recipe"] for measurement in report["recipes"]] == list(codec.RECIPES)
    for measurement in report["recipes"]:
        assert 0 < measurement["bytes_per_value"] <= measurement["bound_per_value"]
        assert 0 <= measurement["relative_error"] < 1
