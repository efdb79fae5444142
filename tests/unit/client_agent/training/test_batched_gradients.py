"""Gradients of single examples from one pass over several: equal to those of one pass each, text by text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter
from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject_lora, inject_pq
from client_agent.adapters.partial_lora import PartialLora
from client_agent.errors import MissingGradient
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText, pad_id
from client_agent.privacy.release import STEPS
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training import batched_gradients as batching
from client_agent.training import private_steps as stepping
from client_agent.training.batched_gradients import (
    BatchedGradients,
    Shape,
    batched_gradients,
    gradients_of_texts,
    shape_of,
)
from client_agent.training.loop import _gradient_of_text, training_mode
from client_agent.training.private_steps import PrivateSteps
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.unit.client_agent.training.test_private_steps import PLAN, flat, gradient_of, size, steps_of

PQ = AdapterPlan(rank=4, blocks=2)
LORA = AdapterPlan(kind="lora", rank=3)
KINDS = ("lora", "only B", "P and Q", "P alone", "gated", "P and Q beside LoRA")


@pytest.fixture
def base(tiny: Callable[..., BaseModel]) -> BaseModel:
    return tiny()


def injected(base: BaseModel, kind: str) -> Adapter:
    """Return an adapter of a kind with random values."""
    adapter: Adapter
    match kind:
        case "lora":
            adapter = inject_lora(base, LORA)
        case "only B":
            adapter = PartialLora(inject_lora(base, LORA), lambda name: True, lambda name: name.endswith("B"))
        case _:
            changes = {
                "P alone": {"bias": False},
                "P and Q beside LoRA": {"same_architecture_rank": 2, "private_rank": 1},
            }
            plan = PQ.model_copy(update=changes.get(kind, {}))
            adapter = inject_pq(base, plan, random_frames(base, plan, 0), gated=kind == "gated")
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapter.named_parameters().values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return adapter


def texts_of(base: BaseModel, examples: Sequence[Example]) -> list[TokenizedText]:
    return encode_for(base, examples, PLAN.max_length)


def assert_batch_matches_single_passes(
    base: BaseModel, adapter: Adapter, texts: Sequence[TokenizedText], most: float = 1e-5
) -> None:
    """Compare with own backward passes: texts of unequal lengths, and one row without a text."""
    parameters = adapter.named_parameters()
    shape = Shape(len(texts) + 1, max(len(text.ids) for text in texts) + 3, 12)
    batched = list(gradients_of_texts(base, parameters, shape, texts))
    assert len(batched) == len(texts)
    for (loss, gradient), text in zip(batched, texts, strict=True):
        expected = gradient_of(base, adapter, text)
        assert np.linalg.norm(gradient - expected) <= most * np.linalg.norm(expected)
        assert np.isfinite(loss)
    assert all(parameter.grad is None for parameter in parameters.values())


@pytest.mark.parametrize("kind", KINDS)
def test_batch_has_each_texts_own_gradient(base: BaseModel, examples: list[Example], kind: str) -> None:
    with injected(base, kind) as adapter:
        assert_batch_matches_single_passes(base, adapter, texts_of(base, examples[:5]))


@pytest.mark.parametrize("kind", ["lora", "gated"])
def test_every_architecture_has_gradients_of_texts(
    each_architecture: BaseModel, examples: list[Example], kind: str
) -> None:
    texts = texts_of(each_architecture, examples[:4])
    with injected(each_architecture, kind) as adapter:
        assert_batch_matches_single_passes(each_architecture, adapter, texts)
        assert batched_gradients(each_architecture, adapter.named_parameters(), texts, PLAN) is not None


def test_checkpointed_layers_have_gradients_of_texts(base: BaseModel, examples: list[Example]) -> None:
    plan = PLAN.model_copy(update={"gradient_checkpointing": True})
    with injected(base, "lora") as adapter, training_mode(base, plan, 0):
        assert_batch_matches_single_passes(base, adapter, texts_of(base, examples[:4]))


def test_bfloat16_base_has_gradients_of_texts(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny(dtype=torch.bfloat16)
    with injected(base, "lora") as adapter:
        assert_batch_matches_single_passes(base, adapter, texts_of(base, examples[:4]), most=0.05)


def test_stored_prefix_is_that_of_texts_without_padding(
    base: BaseModel, examples: list[Example], tmp_path: Path
) -> None:
    base.prefix.store = PrefixStore(tmp_path, 2**24)
    upper = LORA.model_copy(update={"layers": 2})
    with inject_lora(base, upper) as adapter:
        assert base.prefix.first == 2
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in adapter.named_parameters().values():
                parameter.add_(0.1 * torch.randn_like(parameter))
        texts = texts_of(base, examples[:4])
        for _ in range(2):
            assert_batch_matches_single_passes(base, adapter, texts)


def test_dropout_differs_between_texts_of_a_batch(base: BaseModel, examples: list[Example]) -> None:
    (text,) = texts_of(base, examples[:1])
    with inject_lora(base, LORA.model_copy(update={"dropout": 0.5})) as adapter, training_mode(base, PLAN, 0):
        shape = Shape(2, len(text.ids), len(text.ids))
        (_, first), (_, second) = gradients_of_texts(base, adapter.named_parameters(), shape, [text, text])
    assert not np.array_equal(first, second)


def test_gradient_that_reaches_no_parameter_is_an_error(
    base: BaseModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = batching._losses
    with injected(base, "lora") as adapter:
        parameters = adapter.named_parameters()
        monkeypatch.setattr(batching, "_losses", lambda *arguments: whole(*arguments).detach())
        with pytest.raises(MissingGradient, match=r"no gradient reaches l0\.q\.A"):
            list(gradients_of_texts(base, parameters, Shape(2, 64, 64), texts_of(base, examples[:2])))


def test_shape_follows_from_the_text_and_public_numbers(base: BaseModel) -> None:
    plan = TrainingPlan(batch_size=4, max_length=40, learning_rate=0.01)

    def text_shape(length: int, answers: int, **changes: int) -> Shape:
        text = TokenizedText((5,) * length, (False,) * (length - answers) + (True,) * answers, ())
        return shape_of(text, base, 1000, plan.model_copy(update=changes))

    assert text_shape(9, 3) == text_shape(16, 4) == Shape(6, 16, 4)  # four texts are drawn on average
    assert text_shape(16, 5) == Shape(6, 16, 16)
    assert text_shape(17, 2) == Shape(6, 20, 5)
    assert [text_shape(length, 2, max_length=999).width for length in (32, 33, 65)] == [32, 40, 80]
    assert text_shape(33, 2) == Shape(4, 40, 10)  # no wider than the plan's longest text
    assert text_shape(33, 2, batch_size=1) == Shape(1, 40, 10)
    assert text_shape(33, 2, accumulation=8, batch_size=64) == Shape(12, 40, 10)
    assert text_shape(513, 2, batch_size=8, max_length=4096).rows == 1  # long texts are computed alone


def bits_of(
    base: BaseModel, batched: BatchedGradients, adapter: Adapter, texts: Sequence[TokenizedText]
) -> list[bytes]:
    """Return the gradients of texts as a step computes them, in bits."""
    parameters = adapter.named_parameters()
    batches, alone = batched.divided(base, size(parameters), texts)
    assert not alone
    pairs = [
        (text, gradient.tobytes())
        for shape, members in batches
        for text, (_, gradient) in zip(
            members, gradients_of_texts(base, parameters, shape, members), strict=True
        )
    ]
    return [gradient for text in texts for source, gradient in pairs if source is text]


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_gradient_ignore_other_texts(base: BaseModel, examples: list[Example], kind: str) -> None:
    texts = texts_of(base, examples)
    with injected(base, kind) as adapter:
        batched = batched_gradients(base, adapter.named_parameters(), texts, PLAN)
        assert batched is not None
        whole = bits_of(base, batched, adapter, texts)
        for left in (0, 7, 23):
            assert bits_of(base, batched, adapter, [*texts[:left], *texts[left + 1 :]]) == [
                *whole[:left],
                *whole[left + 1 :],
            ]
        assert bits_of(base, batched, adapter, texts[::-1]) == whole[::-1]


def test_text_without_a_finite_gradient_changes_no_other(base: BaseModel, examples: list[Example]) -> None:
    texts = texts_of(base, examples[:6])
    with injected(base, "lora") as adapter:
        shape, parameters = Shape(6, 64, 16), adapter.named_parameters()
        before = [gradient for _, gradient in gradients_of_texts(base, parameters, shape, texts)]
        embedding = base.model.get_input_embeddings()
        used = {pad_id(base.tokenizer), *(i for text in texts for i in text.ids)}
        broken = next(iter(set(range(base.vocabulary)) - used))
        with torch.no_grad():
            embedding.weight[broken] = torch.nan
        bad = replace(texts[2], ids=(broken, *texts[2].ids[1:]))
        after = [g for _, g in gradients_of_texts(base, parameters, shape, [*texts[:2], bad, *texts[3:]])]
    assert np.isnan(after[2]).all()
    assert all(np.array_equal(before[i], after[i]) for i in (0, 1, 3, 4, 5))


def in_batches(
    steps: PrivateSteps, base: BaseModel, adapter: Adapter, plan: TrainingPlan = PLAN
) -> PrivateSteps:
    texts = [text for record in steps.records for text in record]
    return replace(steps, batched=batched_gradients(base, adapter.named_parameters(), texts, plan))


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "discrete_gaussians", lambda count, sigma: np.zeros(count, np.int64))


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_both_modes_have_the_same_mean(
    base: BaseModel, examples: list[Example], no_noise: None, clip: float
) -> None:
    with injected(base, "P and Q beside LoRA") as adapter:
        exact = steps_of(base, adapter, examples, clip=clip)
        parameters = adapter.named_parameters()
        sample = [[record[0]] for record in exact.records]
        means = []
        for steps in (exact, in_batches(exact, base, adapter)):
            loss = steps.noisy_gradient(base, sample, parameters, _gradient_of_text)
            means.append((loss, flat(parameters)))
    (exact_loss, expected), (loss, gradient) = means
    assert loss == pytest.approx(exact_loss, rel=1e-5)
    assert np.linalg.norm(gradient - expected) <= 1e-5 * np.linalg.norm(expected)


def test_additional_text_adds_only_its_clipped_gradient(
    base: BaseModel, examples: list[Example], no_noise: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In integers, as for gradients that are computed alone, whatever the order of the sample."""
    sums: list[NDArray[np.float64]] = []
    monkeypatch.setattr(stepping, "_assign", lambda _, values: sums.append(values))
    with injected(base, "lora") as adapter:
        steps, parameters = steps_of(base, adapter, examples, clip=0.25), adapter.named_parameters()
        steps = in_batches(steps, base, adapter)
        texts = [[record[0]] for record in steps.records]
        for sample in (texts, texts[:-1], texts[-1:]):
            steps.noisy_gradient(base, sample, parameters, _gradient_of_text)
    with_it, without, alone = (np.rint(values * (STEPS / 0.25 * 4)).astype(np.int64) for values in sums)
    assert np.array_equal(with_it - without, alone)
    assert 0 < sum(int(value) ** 2 for value in alone) <= STEPS**2


def test_texts_of_untested_shapes_are_computed_alone(
    base: BaseModel, examples: list[Example], no_noise: None
) -> None:
    calls: list[TokenizedText] = []

    def alone(base: BaseModel, text: TokenizedText) -> float:
        calls.append(text)
        return _gradient_of_text(base, text)

    long = Example("rev abcdefghijklmnopqrstuvwxyz=", "zyxwvutsrqponmlkjihgfedcba")
    with injected(base, "lora") as adapter:
        steps = steps_of(base, adapter, [*examples, long])
        parameters = adapter.named_parameters()
        (last,) = steps.records[-1]
        shape = shape_of(last, base, size(parameters), PLAN)
        steps = in_batches(steps, base, adapter)
        assert steps.batched is not None
        assert shape in steps.batched.shapes
        steps = replace(steps, batched=replace(steps.batched, shapes=steps.batched.shapes - {shape}))
        steps.noisy_gradient(base, [[record[0]] for record in steps.records], parameters, alone)
    assert calls == [last]


@pytest.mark.parametrize("dependence", ["others", "place", "meaning"])
def test_machine_that_mixes_texts_computes_them_alone(
    base: BaseModel,
    examples: list[Example],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dependence: str,
) -> None:
    whole = batching._losses

    def mixed(base: BaseModel, batch: batching.Batch, answers: int) -> torch.Tensor:
        losses = whole(base, batch, answers)
        match dependence:
            case "others":
                return losses * (1 + 1e-6 * batch.attention.sum().item())
            case "place":
                return losses * (1 + 1e-6 * torch.arange(len(losses)))
            case _:
                return 1.1 * losses

    monkeypatch.setattr(batching, "_losses", mixed)
    with injected(base, "lora") as adapter, caplog.at_level(logging.WARNING):
        assert batched_gradients(base, adapter.named_parameters(), texts_of(base, examples), PLAN) is None
    reasons = {"meaning": "another one in a batch"}
    assert "computed one by one, as the" in caplog.text
    assert reasons.get(dependence, "the bits of a text's gradient depend on") in caplog.text


def test_comparison_leaves_adapter_and_random_numbers_unchanged(
    base: BaseModel, examples: list[Example]
) -> None:
    with injected(base, "lora") as adapter:
        state, random_numbers = adapter.state(), torch.get_rng_state()
        batched_gradients(base, adapter.named_parameters(), texts_of(base, examples), PLAN)
        assert all(np.array_equal(values, state[name]) for name, values in adapter.state().items())
        assert torch.equal(random_numbers, torch.get_rng_state())


def test_models_that_read_texts_together_are_refused(
    tiny: Callable[..., BaseModel], examples: list[Example], caplog: pytest.LogCaptureFixture
) -> None:
    base = tiny("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    with injected(base, "lora") as adapter, caplog.at_level(logging.WARNING):
        assert batched_gradients(base, adapter.named_parameters(), texts_of(base, examples), PLAN) is None
    assert "gradients are computed one by one, as routed experts read" in caplog.text
