"""Values of experts in float16, with stochastic rounding that keeps small changes."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.experts.float16 import rounded_to_half


def test_the_mean_of_many_roundings_is_the_value() -> None:
    values = np.full(20_000, 0.02 + 4e-6, np.float32)
    rounded = rounded_to_half(values, np.random.default_rng(0))
    assert rounded.dtype == np.float16
    assert len(set(rounded.tolist())) == 2
    assert rounded.astype(np.float64).mean() == pytest.approx(values[0], abs=2e-7)


def test_float16_values_are_unchanged_by_rounding() -> None:
    values = np.array([0.0, 0.5, -0.25, 65504.0, 6e-8, -1.0], np.float16)
    for seed in range(20):
        rounded = rounded_to_half(values.astype(np.float32), np.random.default_rng(seed))
        np.testing.assert_array_equal(rounded, values)


def test_a_value_beyond_float16_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond float16"):
        rounded_to_half(np.array([7e4], np.float32), np.random.default_rng(0))
