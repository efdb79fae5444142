"""Base models in 4 and 8 bits: quantised layers, slugs and training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.functional import has_avx512bf16
from torch.nn import functional as nnf

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.errors import MissingGradient, ModelNotFound
from client_agent.model.examples import Example, encode_all
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel, base_model_slug, load_base_model
from client_agent.model.tokens import collate, pad_id
from client_agent.settings import Quantization
from client_agent.sketches.gradient import sketch_of
from client_agent.training.batched_gradients import batched_gradients
from client_agent.training.evaluate import evaluate
from client_agent.training.memory import held_bytes, step_memory
from schemas.messages.federations import AdapterPlan, SignaturePlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq
from tests.scene.tiny_models import ARCHITECTURES

ADAPTER = AdapterPlan(rank=8, blocks=2)
PLAN = TrainingPlan(steps=10, batch_size=4, max_length=64)
LAYER = {"nf4": bnb.nn.Linear4bit, "int8": bnb.nn.Linear8bitLt}
Load = Callable[..., BaseModel]
few_bits = pytest.mark.parametrize("quantization", ["nf4", "int8"])


@pytest.fixture(scope="module")
def load(saved_model: Callable[..., str]) -> Load:
    """Load a tiny random model in few bits, or with `none` dense: `load("nf4", "gpt2")`."""

    def loaded(quantization: Quantization, model_type: str = "llama", **changes: object) -> BaseModel:
        dtype = torch.float32 if quantization == "none" else torch.bfloat16
        folder = saved_model(model_type, **{"hidden_size": 64, "head_dim": 16, **changes})
        return load_base_model(folder, device=torch.device("cpu"), dtype=dtype, quantization=quantization)

    return loaded


def loss_decrease(base: BaseModel, adapter: Adapter, examples: list[Example], plan: TrainingPlan) -> float:
    """Train on one batch; return the decrease of its loss."""
    losses = train_examples(base, adapter, examples[:4], plan).losses
    return losses[0] - losses[-1]


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_quantised_architectures_learn_and_are_left_unchanged(
    load: Load, model_type: str, quantization: Quantization, examples: list[Example]
) -> None:
    base = load(quantization, model_type)
    plan = PLAN.model_copy(update={"steps": 5})
    before = [(path, type(module)) for path, module in base.model.named_modules()]
    for inject in (inject_random_pq, inject_lora):
        with inject(base, ADAPTER) as adapter:
            evaluate(base, examples, max_length=64)
            assert loss_decrease(base, adapter, examples, plan) > 0.1
            evaluate(base, examples, max_length=64)
    assert [(path, type(module)) for path, module in base.model.named_modules()] == before
    signature = sketch_of(base, examples, SignaturePlan(dim=64))
    assert signature.vector.any()


@few_bits
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_linear_layers_are_quantised_except_the_head(
    load: Load, model_type: str, quantization: Quantization
) -> None:
    base = load(quantization, model_type)
    for role in base.shapes:
        assert isinstance(base.parts.linear(base.model, 0, role), LAYER[quantization])
    head = base.model.get_submodule(base.parts.output_layer)
    assert head.weight.dtype == torch.bfloat16
    assert base.shapes == load("none", model_type).shapes
    assert held_bytes(base) < held_bytes(load("none", model_type)) / 2


@few_bits
def test_quantised_model_has_the_slug_of_its_weights(
    saved_model: Callable[..., str], quantization: Quantization
) -> None:
    folder = saved_model()
    base = load_base_model(folder, device=torch.device("cpu"), quantization=quantization)
    assert base.slug == base_model_slug(folder)


def test_weights_that_are_stored_quantised_are_refused(saved_model: Callable[..., str]) -> None:
    folder = Path(saved_model())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"load_in_4bit": True}}))
    with pytest.raises(ModelNotFound, match="set model to the dense model"):
        load_base_model(str(folder), device=torch.device("cpu"))


@few_bits
def test_adapters_transfer_between_dense_and_quantised_models(
    load: Load, quantization: Quantization, examples: list[Example]
) -> None:
    bases = (load("none"), load(quantization))
    states = []
    for base in bases:
        with inject_random_pq(base, ADAPTER) as adapter:
            train_examples(base, adapter, examples[:4], PLAN)
            states.append(adapter.state())
    for base, state in zip(bases, reversed(states), strict=True):
        bare = evaluate(base, examples[:4], max_length=64).loss
        with inject_random_pq(base, ADAPTER) as adapter:
            adapter.load(state)
            assert evaluate(base, examples[:4], max_length=64).loss < bare - 0.5


@pytest.mark.skipif(
    not has_avx512bf16(), reason="this CPU has no AVX512-BF16, for which weights are repacked"
)
@pytest.mark.filterwarnings("ignore:bitsandbytes..gemv_4bit")  # all that torch does about it
def test_training_on_repacked_weights_is_refused(load: Load, examples: list[Example]) -> None:
    base = load("nf4", intermediate_size=64)  # repacking wants multiples of 32
    for module in base.model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = True  # as bitsandbytes has it, and loading undoes
    evaluate(base, examples, max_length=64)
    for _ in range(2):  # not only the first time, as warnings are
        with (
            inject_random_pq(base, ADAPTER) as adapter,
            pytest.raises(MissingGradient, match="cannot be differentiated"),
        ):
            train_examples(base, adapter, examples, PLAN)


@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_checkpointing_keeps_gradients_and_leaves_no_hooks(
    load: Load, quantization: Quantization, examples: list[Example]
) -> None:
    base = load(quantization)
    plain, recomputed = (
        gradients(base, examples, PLAN.model_copy(update={"gradient_checkpointing": on}))
        for on in (False, True)
    )
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=1e-5, atol=1e-8)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.model.modules())


def gradients(base: BaseModel, examples: list[Example], plan: TrainingPlan) -> dict[str, torch.Tensor]:
    """Return the gradients of the second step, where P and Q are no longer zero, before the update."""
    gradients_by_name: dict[str, torch.Tensor] = {}
    with inject_random_pq(base, ADAPTER) as adapter:
        for name, parameter in adapter.named_parameters().items():
            parameter.register_hook(
                lambda gradient, name=name: gradients_by_name.update({name: gradient.clone()})
            )
        train_examples(base, adapter, examples, plan.model_copy(update={"steps": 2}))
        assert gradients_by_name.keys() == adapter.named_parameters().keys()
    return gradients_by_name


def test_log_is_not_filled_with_casts(
    load: Load, examples: list[Example], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        base = load("int8")
        evaluate(base, examples, max_length=64)
        with inject_random_pq(base, ADAPTER) as adapter:
            train_examples(base, adapter, examples, PLAN)
    # Coordinators of other tests may still write to the log of this process.
    warnings = [record for record in caplog.records if not record.name.startswith("coordinator")]
    assert not warnings


@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_step_memory_grows_with_its_tokens(
    load: Load, quantization: Quantization, examples: list[Example]
) -> None:
    base = load(quantization)
    with inject_random_pq(base, ADAPTER) as adapter:
        small, large = (
            step_memory(
                base, adapter, collate(encode_all(chosen, base.tokenizer, 64), pad=pad_id(base.tokenizer))
            )
            for chosen in (examples[:4], examples[:4] * 4)
        )
    assert large.step(1000) == pytest.approx(small.step(1000), rel=0.05)
    assert small.recomputing_step(1000) < small.step(1000)
    # gate, act(gate) and up in the type of the model, and the norms' inputs in float32, at the very least
    least = base.layers * (3 * 48 * base.model.dtype.itemsize + 2 * 4 * 64)
    assert least < small.layers < 3 * least
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.model.modules())


@few_bits
def test_quantised_model_approximates_the_dense_one(
    load: Load, quantization: Quantization, examples: list[Example]
) -> None:
    probabilities = []
    for base in (load("none"), load(quantization)):
        batch = collate(encode_all(examples, base.tokenizer, 64), pad=pad_id(base.tokenizer))
        with torch.no_grad():
            probabilities.append(nnf.log_softmax(answer_logits(base, batch)[0], dim=-1))
    dense, quantized = probabilities
    divergence = nnf.kl_div(quantized, dense, log_target=True, reduction="batchmean")
    assert divergence < {"nf4": 0.5, "int8": 0.05}[quantization]


@few_bits
def test_gradients_of_texts_need_products_without_outliers(
    load: Load, examples: list[Example], quantization: Quantization, caplog: pytest.LogCaptureFixture
) -> None:
    base = load(quantization)
    texts = encode_all(examples[:4], base.tokenizer, 64)
    with inject_lora(base, AdapterPlan(kind="lora", rank=4)) as adapter, caplog.at_level(logging.WARNING):
        batched = batched_gradients(base, adapter.named_parameters(), texts, PLAN)
    assert (batched is not None) == (quantization == "nf4"), caplog.text
    assert ("products in 8 bits" in caplog.text) == (quantization == "int8")
