"""The benchmarks of privacy: attacks, the mass of clusters, and the noise of private training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import leak, private_training
from benchmarks.private_relevance import mass
from client_agent.adapters.inject import inject_lora
from client_agent.model.loading import load_base_model
from client_agent.sketches.gradient import Sketch


def test_mass_is_split_over_cluster_self_and_others() -> None:
    east, north, up = np.eye(3, dtype=np.float32)

    def of(*vectors: np.ndarray) -> tuple[float, float, float]:
        return mass(["a", "a", "b", "b"], [Sketch(vector, 1.0) for vector in vectors])

    assert of(east, east, north, north) == pytest.approx((1, 0, 0))
    assert of(east, north, east, north) == pytest.approx((0, 0, 1))
    assert of(east, north, up, -east) == pytest.approx((0, 1, 0))


@pytest.mark.long
def test_private_sketches_resist_the_attack_on_gradients() -> None:
    base = load_base_model(str(leak.ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    attacks = leak.attacked(leak.Attacker.of(base), 1, 0)
    assert attacks["whole gradient, span check"] == (1.0, 1.0)
    assert attacks["sketch of 256, matching"][1] >= 0.8
    assert attacks["sketch of 64, epsilon 1, matching"][1] <= 0.6


@pytest.mark.slow
def test_private_training_uses_the_noise_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    base = load_base_model(str(leak.ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    data = private_training.drawn(16, 0)
    assert not {e.prompt for e in data.train} & {e.prompt for e in data.held_out}
    plan = private_training.plan_of(4, 0.01, steps=2)
    with inject_lora(base, private_training.ADAPTER) as adapter:
        strict, loose = (private_training.steps_of(base, adapter, data, plan, eps) for eps in (1.0, 8.0))
    assert strict.mechanism.noise_multiplier > loose.mechanism.noise_multiplier > 0
    assert (loose.mechanism.sampled, loose.mechanism.records) == (4, 16)
    monkeypatch.setattr(private_training, "STEPS", 5)
    loss, noise = private_training.trained_loss(base, data, 4, None, 0.01)
    assert noise == 0
    assert loss < private_training.start_loss(base, data)


@pytest.mark.slow
def test_step_times_have_all_sides_in_turn() -> None:
    base = load_base_model(str(leak.ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    times = private_training.step_times(base, private_training.drawn(32, 0), 8, repeats=2, timed=3)
    assert times["batch"] == 8
    assert all(times[side] > 0 for side in (*private_training.SIDES, "comparison"))
    assert 0 < times["batched / plain"] < times["exact / plain"]
