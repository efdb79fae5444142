"""AdamW with moments in 8 bits: it learns, and its state survives a round and a change of the setting."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.errors import LayoutMismatch, SettingsUnusable
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.settings import OptimizerName
from client_agent.training.loop import TrainingOptions, TrainingOutcome, train
from client_agent.training.optimiser import build_optimiser, require_optimiser, restore_state, saved_state
from schemas.messages.federations import AdapterPlan, TrainingPlan

ADAPTER = AdapterPlan(kind="lora", rank=64, blocks=2)  # its larger tensors have 4,096 entries or more
State = Mapping[str, NDArray[np.float32]]


@pytest.fixture
def base(tiny: Callable[..., BaseModel]) -> BaseModel:
    return tiny(hidden_size=64, head_dim=16)


def train_with_optimizer(
    base: BaseModel,
    adapter: Adapter,
    examples: list[Example],
    name: OptimizerName,
    state: State | None = None,
    steps: int = 4,
) -> TrainingOutcome:
    plan = TrainingPlan(steps=steps, batch_size=8, learning_rate=0.01, max_length=64)
    options = TrainingOptions(optimizer=name)
    return train(
        base,
        adapter,
        encode_for(base, examples, plan.max_length),
        plan,
        learning_rate=0.01,
        seed=0,
        round_number=1,
        total_rounds=1,
        optimiser_state=state,
        options=options,
    )


def test_eight_bit_adamw_learns_nearly_as_well(base: BaseModel, examples: list[Example]) -> None:
    losses = {}
    for name in ("adamw", "adamw8bit"):
        with inject_lora(base, ADAPTER) as adapter:
            losses[name] = train_with_optimizer(base, adapter, examples, name, steps=12).losses
    assert losses["adamw8bit"][-1] < losses["adamw8bit"][0] - 0.3
    assert losses["adamw8bit"] == pytest.approx(losses["adamw"], rel=0.05)
    assert losses["adamw8bit"] != losses["adamw"]


def built(name: OptimizerName, adapter: Adapter) -> torch.optim.Optimizer:
    return build_optimiser(name, adapter, learning_rate=0.01, weight_decay=0.0)


def test_eight_bit_moments_survive_storing(base: BaseModel, examples: list[Example]) -> None:
    with inject_lora(base, ADAPTER) as adapter:
        state = train_with_optimizer(base, adapter, examples, "adamw8bit").optimiser_state
        parameters = adapter.named_parameters()
        again = built("adamw8bit", adapter)
        restore_state(again, parameters, state)
        dtypes = {again.state[parameter]["state1"].dtype for parameter in parameters.values()}
        assert dtypes == {torch.uint8, torch.float32}, "small tensors stay in 32 bits"
        restored = saved_state(again, parameters)
    assert restored.keys() == state.keys()
    for key, values in state.items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(restored[key], values, rtol=0, atol=0.01 * np.abs(values).max())


@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw")])
def test_optimiser_setting_may_change_between_rounds(
    base: BaseModel, examples: list[Example], before: OptimizerName, after: OptimizerName
) -> None:
    with inject_lora(base, ADAPTER) as adapter:
        state = train_with_optimizer(base, adapter, examples, before).optimiser_state
        changed = train_with_optimizer(base, adapter, examples, after, state).optimiser_state
    assert changed.keys() == state.keys()
    steps = {float(values) for key, values in changed.items() if key.endswith(".step")}
    assert steps == {8.0}


def test_optimiser_state_of_another_adapter_is_refused(base: BaseModel, examples: list[Example]) -> None:
    with inject_lora(base, ADAPTER) as adapter:
        state = train_with_optimizer(base, adapter, examples, "adamw8bit").optimiser_state
    with inject_lora(base, ADAPTER.model_copy(update={"rank": 8})) as adapter:
        with pytest.raises(LayoutMismatch, match="has another shape"):
            restore_state(built("adamw8bit", adapter), adapter.named_parameters(), state)
        with pytest.raises(LayoutMismatch, match="belongs to another adapter"):
            restore_state(
                built("adamw8bit", adapter), adapter.named_parameters(), dict(list(state.items())[1:])
            )


def test_missing_bitsandbytes_is_an_error_naming_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    require_optimiser("adamw")
    with pytest.raises(SettingsUnusable, match=r"optimizer: adamw8bit needs bitsandbytes.*set it to adamw"):
        require_optimiser("adamw8bit")
