"""The clip norm limits the change of an update: the drawn A of a LoRA is not scaled."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.messages.recipes import NAMED, RecipeName
from tests.scene.coordinator import Served
from tests.scene.rounds import Tensors, coded_body, join, last_update, layout_for, put, update_body
from tests.unit.coordinator.updates.lora import START, lora_silo


def random_change(length: float) -> Tensors:
    """Return a random change of this L2 norm."""
    rng = np.random.default_rng(1)
    drawn = {name: rng.normal(size=v.shape).astype(np.float32) for name, v in START.items()}
    norm = np.sqrt(sum(float((v.astype(np.float64) ** 2).sum()) for v in drawn.values()))
    return {name: np.float32(length / norm) * v for name, v in drawn.items()}


@pytest.mark.parametrize("recipe", ["dense", "int8_own_last"])
def test_clipping_scales_the_change_from_the_start(coordinator: Served, recipe: RecipeName) -> None:
    silo = lora_silo(coordinator, recipe, clip_norm=0.5)
    base = join(silo, 1)
    state = {name: START[name] + values for name, values in random_change(2.0).items()}
    if recipe == "dense":
        body, expected = update_body(silo, 1, base, state), state
    else:
        body, expected = coded_body(silo, 1, base, state, NAMED[recipe], against=base, held=START)
    assert put(silo, 1, body).json()["clipped"] is True
    decoded = last_update(silo, layout_for(silo))
    moved = {name: decoded[name] - START[name] for name in START}
    assert np.sqrt(sum(float((v**2).sum()) for v in moved.values())) == pytest.approx(0.5, rel=1e-4)
    for name, values in moved.items():
        np.testing.assert_allclose(values, (expected[name] - START[name]) / 4, atol=2e-3)


def test_the_drawn_a_does_not_count_for_clipping(coordinator: Served) -> None:
    silo = lora_silo(coordinator, "dense", clip_norm=0.5)
    assert np.linalg.norm(START["l0.q.A"]) > 0.5
    state = {name: START[name] + values for name, values in random_change(0.4).items()}
    receipt = put(silo, 1, update_body(silo, 1, join(silo, 1), state)).json()
    assert receipt["clipped"] is False
    for name, values in last_update(silo, layout_for(silo)).items():
        assert values.tobytes() == state[name].tobytes()
