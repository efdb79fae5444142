"""What was folded into a base model acts as if it were in its weights, in every architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from client_agent.adapters.base import require_bare
from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject, inject_lora, parts_of
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.strategies.base import load_strategy
from client_agent.training.loop import train
from schemas.maths.factors import Factors
from schemas.messages.federations import AdapterPlan, TrainingPlan

PLAN = AdapterPlan(kind="lora", rank=4, roles=("q", "v", "down"), scale=1.5)
IDS = torch.tensor([[1, 5, 9, 14, 7, 22, 30, 6, 11]])


def logits(base: BaseModel) -> np.ndarray:
    model: Any = base.model
    with torch.no_grad():
        return np.asarray(model(input_ids=IDS).logits.float())


def fold_for(base: BaseModel) -> dict[str, Factors]:
    """Fold something into some modules: of q and v in one layer, where they may be one linear layer."""
    rng = np.random.default_rng(0)
    fold = {}
    for name, rank in (("l0.q", 2), ("l0.v", 5), ("l1.v", 1), ("l2.down", 3)):
        d_out, d_in = base.shapes[name.partition(".")[2]]  # type: ignore[index]
        a, b = (0.3 * rng.standard_normal(shape) for shape in ((rank, d_in), (d_out, rank)))
        fold[name] = Factors(a.astype(np.float32), b.astype(np.float32))
    return fold


def write_into(base: BaseModel, fold: dict[str, Factors]) -> None:
    model: Any = base.model
    for name, factors in fold.items():
        layer, role = name[1:].split(".")
        linear: Any = base.parts.linear(model, int(layer), role)  # type: ignore[arg-type]
        with torch.no_grad():
            added = PLAN.scale * torch.from_numpy(factors.B @ factors.A)
            rows = base.parts.rows(model, role)  # type: ignore[arg-type]
            if isinstance(linear, Conv1D):
                linear.weight[:, rows] += added.T
            else:
                linear.weight[rows] += added


def test_a_fold_acts_as_if_it_were_in_the_weights(each_architecture: BaseModel) -> None:
    base = each_architecture
    bare, fold = logits(base), fold_for(base)
    with inject_lora(base, PLAN) as adapter:
        adapter.load_base_delta(fold)
        with pytest.raises(AdapterInPlace):
            require_bare(base)
        folded = logits(base)
        adapter.load_base_delta(fold)  # again is as good as once
        np.testing.assert_array_equal(logits(base), folded)
    np.testing.assert_array_equal(logits(base), bare)
    write_into(base, fold)
    np.testing.assert_allclose(folded, logits(base), rtol=1e-4, atol=1e-5)
    assert np.abs(folded - bare).max() > 0.05


def test_as_lora_says_what_adapter_and_fold_do_together(tiny: Callable[..., BaseModel]) -> None:
    base = tiny("gpt2")
    rng = np.random.default_rng(1)
    with inject_lora(base, PLAN) as adapter:
        adapter.load({n: 0.2 * rng.standard_normal(s).astype(np.float32) for n, s in adapter.layout.items()})
        alone = adapter.as_lora()
        fold = fold_for(base)
        adapter.load_base_delta(fold)
        together = adapter.as_lora()
    rows = base.parts.rows(base.model, "v")
    path = base.parts.path(1, "v")
    added = together[path].B @ together[path].A - alone[path].B @ alone[path].A
    np.testing.assert_allclose(added[rows], PLAN.scale * fold["l1.v"].B @ fold["l1.v"].A, atol=1e-5)
    path = base.parts.path(3, "down")
    np.testing.assert_array_equal(together[path].A, alone[path].A)


def test_a_fold_is_frozen_while_the_adapter_trains(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    plan = TrainingPlan(steps=2, batch_size=4, max_length=64)
    with inject_lora(base, PLAN) as adapter:
        adapter.load_base_delta({})
        adapter.load_base_delta(fold_for(base))
        names = set(adapter.named_parameters())
        train(base, adapter, examples, plan, seed=0, round_number=1)
        assert names == set(adapter.layout)
        path = base.parts.path(0, "q")
        np.testing.assert_array_equal(adapter.as_lora()[path].A[PLAN.rank :], fold_for(base)["l0.q"].A)


def test_only_a_whole_lora_of_the_same_widths_can_be_folded(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    fold = fold_for(base)
    with inject_lora(base, PLAN) as adapter:
        for wrong in ({"l9.q": fold["l0.q"]}, {"l0.down": fold["l0.q"]}):
            with pytest.raises(LayoutMismatch):
                adapter.load_base_delta(wrong)
    parts = parts_of(load_strategy("ffa_lora"))
    pq = AdapterPlan(rank=4, blocks=2)
    for plan, chosen in ((PLAN, parts), (pq, None)):
        frames = random_frames(base, pq, 0) if plan is pq else {}
        with (
            inject(base, plan, frames, gated=False, seed=0, parts=chosen) as adapter,
            pytest.raises(AdapterInPlace),
        ):
            adapter.load_base_delta(fold)
