"""The benchmarks of privacy: attacks, the mass of clusters, and the noise of private training."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import forgetting, leak, private_training, private_utility
from benchmarks.private_relevance import Shares, weighed
from client_agent.adapters.inject import inject_lora
from client_agent.model.examples import Example
from client_agent.model.loading import load_base_model
from client_agent.sketches.gradient import Sketch
from schemas.messages.federations import AdapterPlan, TrainingPlan
from studies.study import read_study


def test_weight_is_divided_over_own_task_itself_and_others() -> None:
    east, north, up = np.eye(3, dtype=np.float32)

    def shares(*vectors: np.ndarray) -> Shares:
        return weighed(["a", "a", "b", "b"], [Sketch(vector, 1.0) for vector in vectors])

    separate = shares(east, east, north, north)
    assert (separate.own_task, separate.itself, separate.other_tasks) == pytest.approx((1, 0, 0))
    assert (separate.inside, separate.between) == pytest.approx((1, 0))
    assert shares(east, north, east, north).other_tasks == pytest.approx(1)
    assert shares(east, north, up, -east).itself == pytest.approx(1)


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


@pytest.mark.slow
def test_forgetting_is_less_with_a_pull() -> None:
    base = load_base_model(str(leak.ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    draw, adapter = forgetting.drawn(forgetting.messages(None), 0), AdapterPlan(kind="lora", rank=4)
    assert not {a.prompt + a.answer for a in draw.anchors} & {text.completion for text in draw.public}
    plan = TrainingPlan(steps=6, batch_size=4, learning_rate=0.01, max_length=forgetting.MAX_LENGTH)
    free, pulled = (forgetting.trained(base, adapter, draw, plan, 0, weight) for weight in (0.0, 10.0))
    # This model knows no English, so that any training makes the texts likelier.
    assert abs(pulled.forgetting) < abs(free.forgetting)
    assert len(forgetting.table([free, pulled])) == 2


@pytest.mark.slow
def test_private_utility_compares_alone_and_federated(tmp_path: Path) -> None:
    base = load_base_model(str(leak.ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    silos = private_utility.tiny_silos("cipher", 2, 16, 0)
    rows = [example for silo in silos for example in (*silo.train, *silo.test)]
    assert len({example.prompt for example in rows}) == len(rows)
    plan = TrainingPlan(steps=2, batch_size=4, learning_rate=0.01, max_length=private_utility.MAX_LENGTH)
    trial = private_utility.Trial(base, private_training.ADAPTER, plan, 2, batched=False, only_b=False)
    mechanism = private_utility.mechanism_of(trial, 16, 0.1, 8.0)
    measured = [
        private_utility.Measured(
            0, epsilon, 0.01, federated, *trial.measured(silos, noise, 0.01, federated=federated, seed=0)
        )
        for epsilon, noise in ((None, None), (8.0, mechanism))
        for federated in (False, True)
    ]
    assert len({run.loss for run in measured}) == 4
    table = private_utility.table(measured, [None, 8.0], lambda _: mechanism)
    assert [row[0] for row in table] == ["no noise", "8"]
    assert private_utility.stored(tmp_path / "none.json", {}) == []


def test_private_utility_forgets_trainings_of_another_dtype(tmp_path: Path) -> None:
    model, file = str(leak.ROOT / "examples" / "models" / "tiny-s"), tmp_path / "stored.json"
    arguments = argparse.Namespace(**dict.fromkeys(private_utility.FACTS))
    exact, short = (
        private_utility.facts_of(arguments, load_base_model(model, device=torch.device("cpu"), dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    run = private_utility.Measured(0, None, 0.01, True, 1.0, None)
    file.write_text(json.dumps({**exact, "runs": [asdict(run)]}), "utf-8")
    assert private_utility.stored(file, exact) == [run]
    assert private_utility.stored(file, short) == []
    assert private_utility.stored(file, exact | {"model": "another"}) == []


def test_forgetting_forgets_trainings_on_other_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = [Example("a", "b")]
    before, paragraphs = forgetting.texts_digest(pool), forgetting.paragraphs()
    assert forgetting.texts_digest(pool) == before != forgetting.texts_digest([*pool, *pool])
    monkeypatch.setattr(forgetting, "paragraphs", lambda: paragraphs[1:])
    assert forgetting.texts_digest(pool) != before


def test_private_utility_takes_one_group_of_a_study() -> None:
    study = read_study(leak.ROOT / "examples" / "studies" / "experts.toml")
    silos = private_utility.text_silos(study, "label", 16, 0)
    assert [(len(silo.train), len(silo.test)) for silo in silos] == [(16, private_utility.HELD_OUT)] * 5
    assert all(example.prompt.startswith("LABEL") for silo in silos for example in silo.train)
    with pytest.raises(SystemExit, match=r"no such group; its groups are cipher, cipher_b, label"):
        private_utility.text_silos(study, "labels", 16, 0)


def test_private_utility_of_b_alone_keeps_a() -> None:
    base = load_base_model(str(leak.ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    with inject_lora(base, private_training.ADAPTER) as lora:
        adapter = private_utility.trained_part(lora, only_b=True)
        assert set(adapter.state()) == set(adapter.named_parameters())
        assert all(name.endswith(".B") for name in adapter.state())
