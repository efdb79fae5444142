"""Banks of experts beside base models in 4 and 8 bits: function, training and export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as nnf

from client_agent.adapters.base import require_bare
from client_agent.adapters.expert_bank import experts_in
from client_agent.errors import ExportUnsupported
from client_agent.experts.routed_experts import RoutedExperts, inject_experts
from client_agent.export.artefact import held_out_loss
from client_agent.export.job import export_adapter
from client_agent.export.xlora import export_routed
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.settings import Quantization
from client_agent.training.silo import Silo
from tests.scene.local_training import train_examples
from tests.scene.models import logits_of
from tests.scene.tensors import random_tensors
from tests.unit.client_agent.experts.routed_bank import (
    EXPERTS,
    IDS,
    PLAN,
    SOFT,
    TRAINING,
    with_router,
)
from tests.unit.client_agent.export.artefacts import FACTS, SCORING, Source, artefact, write_no_card

pytestmark = pytest.mark.slow

Load = Callable[[Quantization], BaseModel]
few_bits = pytest.mark.parametrize("quantization", ["nf4", "int8"])

LARGEST = {"nf4": 0.05, "int8": 0.005}
"""The largest divergence from the predictions beside the dense model, in nats per token."""


@pytest.fixture(scope="module")
def load(saved_model: Callable[..., str]) -> Load:
    folder = saved_model(hidden_size=64, head_dim=16)

    def loaded(quantization: Quantization) -> BaseModel:
        dtype = torch.float32 if quantization == "none" else torch.bfloat16
        return load_base_model(folder, device=torch.device("cpu"), dtype=dtype, quantization=quantization)

    return loaded


def routed(base: BaseModel, size: float = 0.5) -> RoutedExperts:
    """Wrap a model in a bank with trained experts and router."""
    adapter = inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0)
    adapter.load({name: size * values for name, values in random_tensors(adapter.layout, scale=0.3).items()})
    with_router(adapter)
    return adapter


def divergence(predicted: torch.Tensor, expected: torch.Tensor) -> float:
    """Return KL(expected || predicted) per token, in nats."""
    log_probabilities, dense = (
        nnf.log_softmax(values.float(), dim=-1).flatten(0, 1) for values in (predicted, expected)
    )
    return float(nnf.kl_div(log_probabilities, dense, log_target=True, reduction="batchmean"))


def weights_of(adapter: RoutedExperts) -> torch.Tensor:
    weights = adapter.bank.specialist_weights
    assert weights is not None
    return weights


@few_bits
def test_quantised_routed_bank_approximates_the_dense_one(load: Load, quantization: Quantization) -> None:
    dense, quantised = load("none"), load(quantization)
    bare = logits_of(dense, IDS)
    with routed(dense) as adapter:
        expected, alphas = logits_of(dense, IDS), weights_of(adapter)
    with routed(quantised) as adapter:
        assert {tensor.dtype for tensor in adapter.named_parameters().values()} == {torch.float32}
        off = divergence(logits_of(quantised, IDS), expected)
        shifted = (weights_of(adapter) - alphas).abs().mean()
        adapter.choose((5,))
        another = divergence(logits_of(quantised, IDS), expected)
    require_bare(quantised)
    assert off < LARGEST[quantization]
    # Beside four bits, two or three of twelve tokens near a tie of two experts may choose the other expert;
    # which ones depends on the processor's arithmetic in bfloat16.
    assert shifted < {"nf4": 0.3, "int8": 0.02}[quantization]
    assert alphas[1].std(dim=0).min() > 0.1  # the router tells tokens apart
    for distance in (divergence(bare, expected), another):  # without the bank, and without the router
        assert distance > 4 * off


@few_bits
@pytest.mark.parametrize("checkpointing", [False, True])
def test_experts_and_router_train_beside_few_bits(
    load: Load, quantization: Quantization, examples: list[Example], checkpointing: bool
) -> None:
    base = load(quantization)
    plan = TRAINING.model_copy(update={"steps": 8, "gradient_checkpointing": checkpointing})
    frozen = {name: values.clone() for name, values in base.model.state_dict().items()}
    with inject_experts(
        base, PLAN, {}, EXPERTS, SOFT.model_copy(update={"consistency": 0.1}), seed=0
    ) as adapter:
        with_router(adapter)
        before, private = adapter.state(), adapter.private_state()
        penalty = adapter.penalty(examples, 64, 1)
        chosen = examples[:4]
        losses = train_examples(base, adapter, chosen, plan, penalty=penalty).losses
        after, moved = adapter.state(), adapter.private_state()
    assert losses[0] - losses[-1] > 0.1
    changed = experts_in(name for name in after if not np.array_equal(after[name], before[name]))
    assert changed == (0, 1, 5)
    for expert, is_chosen in {1: True, 2: False, 5: True}.items():
        row = f"router.x{expert}.u"
        assert np.array_equal(moved[row], private[row]) != is_chosen
    for name, values in base.model.state_dict().items():
        assert torch.equal(values, frozen[name]), name


@few_bits
def test_bank_trained_on_few_bits_exports_beside_dense(
    load: Load, quantization: Quantization, silo: Silo, tmp_path: Path
) -> None:
    """Public peft loads no X-LoRA on a quantised model: what to do is said, and does it."""
    source = Source(lambda base: routed(base, 0.2))
    few = replace(silo, base=load(quantization), quantization=quantization)
    with pytest.raises(ExportUnsupported, match="set quantization to none"):
        export_routed(few, source, FACTS, "model", tmp_path / "refused", write_no_card)
    assert not (tmp_path / "refused").exists()
    require_bare(few.base)
    with source.attach(few) as (adapter, _):
        loss = held_out_loss(few.base, few, SCORING, 64)
        state, private = adapter.state(), adapter.private_state()

    def again(base: BaseModel) -> RoutedExperts:
        again = inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0)
        again.load(state)
        again.load_private(private)
        return again

    dense = replace(silo, base=load("none"))
    losses = export_routed(
        dense, Source(again), FACTS, "model", tmp_path / "routed", write_no_card
    ).written.losses
    flat = export_adapter(
        dense, Source(again), FACTS, artefact(tmp_path), tmp_path / "flat", write_no_card, flat=True
    )
    assert losses.export == pytest.approx(loss, abs=0.1)
    assert flat.written.losses.routed == pytest.approx(losses.adapter)
