"""The training loop: learning, reproducibility, exact resumption, and errors that stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from client_agent.adapters.frames import Frame, random_frames
from client_agent.adapters.inject import inject_lora, inject_pq
from client_agent.errors import LayoutMismatch, LossNotFinite, MissingGradient, TextTooLong
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import Step, TrainingOutcome
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq
from tests.scene.tensors import filled_tensors
from tests.scene.tiny_models import ARCHITECTURES

ADAPTER = AdapterPlan(rank=8, blocks=2)
PLAN = TrainingPlan(steps=6, batch_size=4, max_length=64)


def run(
    base: BaseModel, examples: Sequence[Example], plan: TrainingPlan = PLAN, *, number: int = 1
) -> tuple[TrainingOutcome, dict[str, np.ndarray]]:
    with inject_random_pq(base, ADAPTER) as adapter:
        outcome = train_examples(base, adapter, examples, plan, round_number=number)
        return outcome, adapter.state()


def have_equal_arrays(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_lora_and_pq_adapters_learn(each_architecture: BaseModel, examples: list[Example]) -> None:
    base = each_architecture
    plan = PLAN.model_copy(update={"steps": 15})
    for inject in (inject_random_pq, inject_lora):
        with inject(base, ADAPTER) as adapter:
            losses = train_examples(base, adapter, examples[:4], plan).losses
        assert losses[-1] < losses[0] - 0.3


def test_training_is_reproducible_and_rounds_differ(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny(attention_dropout=0.2)
    first, again, second = run(base, examples), run(base, examples), run(base, examples, number=2)
    assert first[0].losses == again[0].losses
    assert have_equal_arrays(first[1], again[1])
    assert not have_equal_arrays(first[1], second[1])


def test_training_leaves_global_random_state_unchanged(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(base, examples)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("gated", [False, True])
def test_resumed_optimiser_state_equals_uninterrupted_training(
    tiny: Callable[..., BaseModel], examples: list[Example], gated: bool
) -> None:
    base = tiny()
    with inject_random_pq(base, ADAPTER, gated=gated) as adapter:
        first = train_examples(base, adapter, examples, PLAN)
        paused, private = adapter.state(), adapter.private_state()
        whole = train_examples(
            base, adapter, examples, PLAN, round_number=2, optimiser_state=first.optimiser_state
        )
        expected = {**adapter.state(), **adapter.private_state()}
    assert all(values.dtype == np.float32 for values in first.optimiser_state.values())
    with inject_random_pq(base, ADAPTER, gated=gated) as adapter:
        adapter.load(paused)
        adapter.load_private(private)
        stored = {name: values.copy() for name, values in first.optimiser_state.items()}
        resumed = train_examples(base, adapter, examples, PLAN, round_number=2, optimiser_state=stored)
        assert have_equal_arrays({**adapter.state(), **adapter.private_state()}, expected)
    assert resumed.losses == whole.losses
    assert have_equal_arrays(resumed.optimiser_state, whole.optimiser_state)


def test_optimiser_state_of_another_adapter_is_refused(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    state = run(base, examples)[0].optimiser_state
    for wrong in (
        {name: values for name, values in state.items() if not name.startswith("b0.q")},
        {name: np.zeros(3, np.float32) for name in state},
    ):
        with inject_random_pq(base, ADAPTER) as adapter, pytest.raises(LayoutMismatch):
            train_examples(base, adapter, examples, PLAN, optimiser_state=wrong)


def test_accumulation_equals_a_larger_batch(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    large = PLAN.model_copy(update={"batch_size": 8})
    small = PLAN.model_copy(update={"accumulation": 2})
    first, second = run(base, examples, large), run(base, examples, small)
    np.testing.assert_allclose(first[0].losses, second[0].losses, rtol=1e-4)
    assert first[0].tokens == second[0].tokens


def test_checkpointing_changes_no_result(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny(attention_dropout=0.1)
    plain, saved = (
        run(base, examples),
        run(base, examples, PLAN.model_copy(update={"gradient_checkpointing": True})),
    )
    assert plain[0].losses == saved[0].losses
    assert have_equal_arrays(plain[1], saved[1])
    assert not base.model.training
    assert not base.model.is_activation_checkpointing


def test_parameter_without_gradient_stops_training_by_name(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    with inject_random_pq(base, ADAPTER) as adapter:
        layer = base.parts.linear(base.model, 3, "up")
        layer.forward = layer.base_layer.forward  # type: ignore[assignment,method-assign,union-attr]
        with pytest.raises(MissingGradient, match=r"b1\.up\.P"):
            train_examples(base, adapter, examples, PLAN)
    adapter = inject_random_pq(base, ADAPTER)
    adapter.remove()
    with pytest.raises(MissingGradient):
        train_examples(base, adapter, examples, PLAN)


def test_loss_that_is_not_finite_stops_training(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    with inject_random_pq(base, ADAPTER) as adapter:
        adapter.load(filled_tensors(adapter.layout, np.nan))
        with pytest.raises(LossNotFinite, match="learning_rate"):
            train_examples(base, adapter, examples, PLAN)
    assert not base.model.training


def test_training_after_divergence_equals_a_fresh_one(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    expected, tensors = run(base, examples)
    with inject_random_pq(base, ADAPTER) as adapter:
        start = adapter.state()
        adapter.load(filled_tensors(adapter.layout, np.nan))
        with pytest.raises(LossNotFinite):
            train_examples(base, adapter, examples, PLAN)
        adapter.load(start)
        outcome = train_examples(base, adapter, examples, PLAN)
        assert outcome.losses == expected.losses
        assert have_equal_arrays(adapter.state(), tensors)


def test_base_model_is_unchanged_by_training(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    run(base, examples)
    after = base.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not any(parameter.grad is not None for parameter in base.model.parameters())


def test_frames_train_at_their_own_rate(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    frames = random_frames(base, ADAPTER, 0)
    slow = frames["b0.v"]
    frames["b0.v"] = Frame(slow.A, slow.B, rate=0.1)
    with inject_pq(base, ADAPTER, frames, gated=True) as adapter:
        train_examples(base, adapter, examples, PLAN.model_copy(update={"steps": 1}))
        moved = {name: float(np.abs(values).max()) for name, values in adapter.state().items()}
        gate = adapter.private_state()
    assert moved["b1.v.P"] == pytest.approx(0.01, rel=1e-3)  # Adam's first step is the learning rate
    assert moved["b0.v.P"] == pytest.approx(0.001, rel=1e-3)
    assert abs(gate["b1.v.gate"] + 1.386) == pytest.approx(0, abs=1e-6)  # L = G = 0: nothing to tell apart


def test_gate_trains_at_rate_of_p_and_q(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base = tiny()
    with inject_random_pq(base, ADAPTER, gated=True) as adapter:
        adapter.load_global(filled_tensors(adapter.layout, 0.05))
        train_examples(base, adapter, examples, PLAN.model_copy(update={"steps": 1}))
        for gate in adapter.private_state().values():
            assert abs(gate + 1.386) == pytest.approx(0.01, rel=1e-2)


def test_steps_are_reported_and_training_can_be_stopped(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    steps: list[Step] = []
    with inject_random_pq(base, ADAPTER) as adapter:
        outcome = train_examples(
            base,
            adapter,
            examples,
            PLAN,
            on_step=steps.append,
            stop=lambda: len(steps) == 3,
        )
    assert [step.number for step in steps] == [1, 2, 3]
    assert [step.loss for step in steps] == outcome.losses
    assert all(later.tokens > earlier.tokens for earlier, later in pairwise(steps))
    assert outcome.tokens == steps[-1].tokens


@pytest.mark.slow
def test_bfloat16_base_trains_float32_adapters(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny(dtype=torch.bfloat16)
    plan = PLAN.model_copy(update={"steps": 15})
    for inject in (inject_random_pq, inject_lora):
        with inject(base, ADAPTER) as adapter:
            assert {p.dtype for p in adapter.named_parameters().values()} == {torch.float32}
            losses = train_examples(base, adapter, examples[:4], plan).losses
        assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_texts_beyond_model_positions_are_refused_before_training(
    tiny: Callable[..., BaseModel], examples: list[Example], model_type: str
) -> None:
    base = tiny(model_type, max_position_embeddings=12)
    assert base.positions == 12
    with inject_random_pq(base, ADAPTER) as adapter:
        for step in (
            lambda: train_examples(base, adapter, examples, PLAN),
            lambda: evaluate(base, examples, max_length=64),
        ):
            with pytest.raises(
                TextTooLong, match=r"reads 12 at most; ask the operator to set training\.max_length to 12"
            ):
                step()
        assert not any(values.any() for values in adapter.state().values())
        shorter = PLAN.model_copy(update={"max_length": 12})
        assert np.isfinite(train_examples(base, adapter, examples, shorter).losses).all()


def test_stretched_rotary_positions_count_as_positions(tiny: Callable[..., BaseModel]) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert tiny(max_position_embeddings=12, rope_parameters=rope).positions == 48
