"""A base delta acts as if it were in the base model's weights, in every architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from client_agent.adapters.base import require_bare
from client_agent.adapters.inject import inject_lora
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.factors import Factors
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import logits_array
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(kind="lora", rank=4, roles=("q", "v", "down"), scale=1.5)
IDS = torch.tensor([[1, 5, 9, 14, 7, 22, 30, 6, 11]])


def random_base_delta(base: BaseModel) -> dict[str, Factors]:
    """Fold something into some modules: of q and v in one layer, where they may be one linear layer."""
    rng = np.random.default_rng(0)
    base_delta = {}
    for name, rank in (("l0.q", 2), ("l0.v", 5), ("l1.v", 1), ("l2.down", 3)):
        d_out, d_in = base.shapes[name.partition(".")[2]]  # type: ignore[index]
        a, b = (0.3 * rng.standard_normal(shape) for shape in ((rank, d_in), (d_out, rank)))
        base_delta[name] = Factors(a.astype(np.float32), b.astype(np.float32))
    return base_delta


def write_into(base: BaseModel, base_delta: dict[str, Factors]) -> None:
    model: Any = base.model
    for name, factors in base_delta.items():
        layer, role = name[1:].split(".")
        linear: Any = base.parts.linear(model, int(layer), role)  # type: ignore[arg-type]
        with torch.no_grad():
            added = PLAN.scale * torch.from_numpy(factors.B @ factors.A)
            rows = base.parts.row_numbers(0, role)  # type: ignore[arg-type]
            if isinstance(linear, Conv1D):
                linear.weight[:, rows] += added.T
            else:
                linear.weight[rows] += added


def test_base_delta_acts_as_changed_base_weights(each_architecture: BaseModel) -> None:
    base = each_architecture
    bare, base_delta = logits_array(base, IDS), random_base_delta(base)
    with inject_lora(base, PLAN) as adapter:
        adapter.load_base_delta(base_delta)
        with pytest.raises(AdapterInPlace):
            require_bare(base)
        changed = logits_array(base, IDS)
        adapter.load_base_delta(base_delta)  # again is as good as once
        np.testing.assert_array_equal(logits_array(base, IDS), changed)
    np.testing.assert_array_equal(logits_array(base, IDS), bare)
    write_into(base, base_delta)
    np.testing.assert_allclose(changed, logits_array(base, IDS), rtol=1e-4, atol=1e-5)
    assert np.abs(changed - bare).max() > 0.05


def test_as_lora_includes_the_base_delta(tiny: Callable[..., BaseModel]) -> None:
    base = tiny("gpt2")
    with inject_lora(base, PLAN) as adapter:
        adapter.load(random_tensors(adapter.layout, 1, 0.2))
        alone = adapter.as_lora()
        base_delta = random_base_delta(base)
        adapter.load_base_delta(base_delta)
        together = adapter.as_lora()
    rows = base.parts.row_numbers(0, "v")
    path = base.parts.path(1, "v")
    added = together[path].B @ together[path].A - alone[path].B @ alone[path].A
    np.testing.assert_allclose(
        added[rows], PLAN.scale * base_delta["l1.v"].B @ base_delta["l1.v"].A, atol=1e-5
    )
    path = base.parts.path(3, "down")
    np.testing.assert_array_equal(together[path].A, alone[path].A)


def test_base_delta_is_frozen_during_training(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    plan = TrainingPlan(steps=2, batch_size=4, max_length=64)
    with inject_lora(base, PLAN) as adapter:
        adapter.load_base_delta({})
        adapter.load_base_delta(random_base_delta(base))
        names = set(adapter.named_parameters())
        train_examples(base, adapter, examples, plan)
        assert names == set(adapter.layout)
        path = base.parts.path(0, "q")
        np.testing.assert_array_equal(
            adapter.as_lora()[path].A[PLAN.rank :], random_base_delta(base)["l0.q"].A
        )


def test_base_delta_requires_modules_of_equal_widths(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    base_delta = random_base_delta(base)
    with inject_lora(base, PLAN) as adapter:
        for wrong in ({"l9.q": base_delta["l0.q"]}, {"l0.down": base_delta["l0.q"]}):
            with pytest.raises(LayoutMismatch):
                adapter.load_base_delta(wrong)
