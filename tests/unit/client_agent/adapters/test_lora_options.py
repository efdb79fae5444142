"""rsLoRA and dropout: their effects, refusals, and exports without them."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from client_agent.adapters.inject import inject_lora
from client_agent.adapters.layers import LoraLinear
from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.adapters.provenance import origin_of, require_plan
from client_agent.errors import ProvenanceMismatch
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from schemas.maths.factors import Factors
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import logits_of
from tests.scene.tensors import random_tensors
from tests.unit.client_agent.model.architecture_table import IDS

RS = AdapterPlan(kind="lora", rank=9, scale=0.5, roles=("q", "v", "down"), rslora=True)
SAME = AdapterPlan(kind="lora", rank=9, scale=1.5, roles=("q", "v", "down"))  # 0.5 sqrt(9)
DROPOUT = AdapterPlan(kind="lora", rank=4, roles=("q", "down"), dropout=0.25)


def base_delta(base: BaseModel) -> dict[str, Factors]:
    rng = np.random.default_rng(1)
    d_out, d_in = base.shapes["v"]
    draw = lambda *shape: (0.3 * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    return {"l1.v": Factors(draw(5, d_in), draw(d_out, 5))}


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_rslora_is_scale_times_root_of_rank(tiny: Callable[..., BaseModel], model_type: str) -> None:
    base = tiny(model_type)
    results = []
    for plan in (RS, SAME):
        with inject_lora(base, plan) as adapter:
            adapter.load(random_tensors(adapter.layout, scale=0.3))
            adapter.load_base_delta(base_delta(base))  # what FedEx-LoRA and FLoRA add
            results.append((logits_of(base, IDS, use_cache=False), adapter.as_lora()))
    (with_root, first), (with_scale, second) = results
    assert torch.equal(with_root, with_scale)
    for path, factors in first.items():
        np.testing.assert_array_equal(factors.B, second[path].B)


@pytest.mark.filterwarnings("ignore")  # of how public code calls other public code
def test_rslora_equals_public_peft(tiny: Callable[..., BaseModel]) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    base, public = tiny(), tiny()
    config = LoraConfig(
        r=9, lora_alpha=0.5 * 9, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]
    )
    inject_adapter_in_model(config, public.model)
    with inject_lora(base, RS) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        for name, values in adapter.state().items():
            module, _, factor = name.rpartition(".")
            layer, role = module[1:].split(".")
            linear: Any = base.parts.path(int(layer), role)  # type: ignore[arg-type]
            peft_layer: Any = public.model.get_submodule(linear)
            getattr(peft_layer, f"lora_{factor}")["default"].weight.data = torch.from_numpy(values)
        torch.testing.assert_close(
            logits_of(base, IDS, use_cache=False),
            logits_of(public, IDS, use_cache=False),
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.filterwarnings("ignore")
def test_export_includes_rslora_factor_without_options(
    saved_model: Callable[..., str], tiny: Callable[..., BaseModel], tmp_path: Path
) -> None:
    base = tiny()
    with inject_lora(base, RS.model_copy(update={"dropout": 0.5})) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        expected = logits_of(base, IDS, use_cache=False)
        write_checkpoint(tmp_path, adapter.as_lora(), base, saved_model())
    with checkpoint_in_place(base, tmp_path):
        torch.testing.assert_close(logits_of(base, IDS, use_cache=False), expected, rtol=1e-5, atol=1e-5)


def test_dropout_acts_in_training_only_and_keeps_mean(tiny: Callable[..., BaseModel]) -> None:
    layer = LoraLinear(torch.nn.Linear(8, 4, bias=False), [None], 2, 1.0, 0.25)
    torch.manual_seed(0)
    for parameter in (*layer.A, *layer.B):
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 8)
    with torch.no_grad():
        whole = layer.eval()(x)
        assert torch.equal(layer(x), whole)
        dropped = layer.train()(x.expand(20_000, 8))
    assert not torch.allclose(dropped[0], whole[0])
    torch.testing.assert_close(dropped.mean(0, keepdim=True), whole, rtol=0.05, atol=0.05)


def test_dropout_follows_from_seed_and_round(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()

    def losses(plan: AdapterPlan, round_number: int = 1) -> list[float]:
        training = TrainingPlan(steps=3, batch_size=4, max_length=64, learning_rate=0.02)
        with inject_lora(base, plan) as adapter:
            adapter.load(random_tensors(adapter.layout, scale=0.3))
            return train_examples(base, adapter, examples[:4], training, round_number=round_number).losses

    assert losses(DROPOUT) == losses(DROPOUT)
    assert losses(DROPOUT) != losses(DROPOUT.model_copy(update={"dropout": 0.0}))
    assert losses(DROPOUT) != losses(DROPOUT, round_number=2)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"rslora": True}, "rslora\n.*frames set the size"),
        ({"dropout": 0.1}, "dropout\n.*frozen A is fitted"),
    ],
)
def test_p_and_q_refuse_rslora_and_dropout(option: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        AdapterPlan.model_validate(option)


def test_lora_factor_follows_from_the_options() -> None:
    assert AdapterPlan.model_validate(RS.model_dump()) == RS
    assert RS.factor == pytest.approx(0.5 * sqrt(9))
    assert SAME.factor == 1.5


def test_adapter_requires_the_same_rslora_option(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    for trained, current in ((RS, "rslora"), (RS.model_copy(update={"rslora": False}), "rslora")):
        origin = origin_of(base, trained, {}, gated=False, seed=0)
        require_plan(origin, trained.model_copy(update={"dropout": 0.3}))  # the function is the same
        with pytest.raises(ProvenanceMismatch, match=current):
            require_plan(origin, trained.model_copy(update={"rslora": not trained.rslora}))
