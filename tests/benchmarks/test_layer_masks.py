"""Masks of an adapter's modules: what the controller chooses, and what a mask changes in training."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from benchmarks import layer_masks
from benchmarks.mask_controller import (
    Controller,
    Salience,
    inject_masked,
    last_layers,
    module_of,
    random_mask,
)
from benchmarks.masked_rounds import KEEP, run
from client_agent.adapters.inject import inject_lora
from client_agent.adapters.lora import LoraAdapter
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.training.loop import train
from examples.tasks import TASKS, draw
from schemas.messages.federations import AdapterPlan, TrainingPlan
from studies.clients import SharedModels
from studies.study import read_study
from tests.scenarios.agents import MODELS

PLAN = AdapterPlan(kind="lora", rank=2, roles=("v", "o"))
MODULES = [f"l{layer}.{role}" for layer in range(5) for role in ("o", "v")]


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base_model(str(MODELS["S"]), device=torch.device("cpu"))


def trained(base: BaseModel, adapter: LoraAdapter) -> dict[str, np.ndarray]:
    pool = draw(TASKS["cipher"], 8, random.Random("masks"))
    texts = encode_for(base, [Example(item.prompt, item.completion) for item in pool], 64)
    plan = TrainingPlan(steps=3, batch_size=4, learning_rate=0.01, max_length=64)
    train(base, adapter, texts, plan, learning_rate=0.01, seed=0, round_number=1, total_rounds=1)
    return adapter.state()


def test_a_mask_of_all_modules_is_no_mask_to_the_bit(base: BaseModel) -> None:
    with inject_lora(base, PLAN) as plain:
        expected = trained(base, plain)
    with inject_masked(base, PLAN, seed=0) as masked:
        masked.train_only({module_of(name) for name in expected})
        state = trained(base, masked)
    assert expected.keys() == state.keys()
    assert all(np.array_equal(state[name], values) for name, values in expected.items())


def test_only_the_modules_of_a_mask_are_trained_and_have_salience(base: BaseModel) -> None:
    salience = Salience()
    with inject_masked(base, PLAN, seed=0) as masked:
        before = masked.state()
        chosen = {module_of(name) for name in before if ".v." in name}
        masked.train_only(chosen)
        with salience.measured(masked.named_parameters()):
            after = trained(base, masked)
    changed = {module_of(name) for name in before if not np.array_equal(before[name], after[name])}
    assert changed == chosen == salience.levels().keys()
    assert min(salience.levels().values()) > 0


def test_the_controller_chooses_salient_modules_and_keeps_them_within_the_hysteresis() -> None:
    every = Controller(MODULES, keep=1.0)
    assert every.choose(1) == every.choose(2) == frozenset(MODULES)
    controller = Controller(MODULES, keep=0.5)
    assert controller.choose(1) == frozenset(MODULES)
    controller.observe({module: float(place + 1) for place, module in enumerate(MODULES)})
    assert sum(controller.salience.values()) == pytest.approx(len(MODULES))
    salient = frozenset(MODULES[5:])
    assert controller.choose(2) == salient
    weakest = controller.salience[MODULES[5]]
    controller.salience[MODULES[4]] = 1.05 * weakest
    assert controller.choose(3) == salient
    controller.salience[MODULES[4]] = 1.15 * weakest
    assert controller.choose(4) == salient - {MODULES[5]} | {MODULES[4]}


def test_equally_salient_modules_stay_equally_salient_in_and_out_of_the_mask() -> None:
    controller = Controller(MODULES, keep=0.5)
    for number, gradients in enumerate((1.0, 0.3, 0.1, 0.02), start=1):
        controller.observe(dict.fromkeys(controller.choose(number), gradients))
    assert list(controller.salience.values()) == pytest.approx([1.0] * len(MODULES))


def test_a_share_of_a_large_budget_explores() -> None:
    modules = [f"l{layer}.v" for layer in range(40)]
    controller = Controller(modules, keep=0.5)
    controller.choose(1)
    controller.observe({module: 1.0 + (place < 20) for place, module in enumerate(modules)})
    masks = [controller.choose(number) for number in range(2, 13)]
    assert all(len(mask) == 20 for mask in masks)
    assert frozenset.union(*masks) == frozenset(modules), "every module trains within eleven rounds"


def test_random_masks_are_as_large_and_differ_by_client_and_round() -> None:
    masks = {random_mask(MODULES, 0.5, number, key) for number in (2, 3, 4) for key in ("a", "b")}
    assert len(masks) > 3
    assert {len(mask) for mask in masks} == {5}
    assert random_mask(MODULES, 0.5, 1, "a") == frozenset(MODULES)
    assert last_layers(MODULES, 0.4, 2) == {"l3.o", "l3.v", "l4.o", "l4.v"}


@pytest.mark.slow
def test_masks_halve_the_bytes_of_later_rounds(tmp_path: Path) -> None:
    file = Path(layer_masks.__file__).parents[1] / "examples" / "studies" / "masks.toml"
    setting = layer_masks.setting_of(read_study(file, copies=1), SharedModels(), 0, 0.01, rounds=2)
    adapter = setting.plan.adapter
    assert (adapter.rank, adapter.roles) == (8, ("v", "o", "gate", "up", "down"))
    assert setting.relevance.sum(axis=1) == pytest.approx([1.0, 1.0])
    progress = Progress(disable=True)
    whole, largest, salient = (
        run(setting, way, progress, progress.add_task(way)) for way in ("all", "largest", "salient")
    )
    assert salient.bytes == pytest.approx(whole.bytes * (1 + KEEP) / 2, rel=0.15)
    assert largest.bytes == pytest.approx(whole.bytes * (1 + KEEP) / 2, rel=0.05)
    assert all(0 < figures.best < 10 for figures in (whole, largest, salient))
    assert salient.best != whole.best
