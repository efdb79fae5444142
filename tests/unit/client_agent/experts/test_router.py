"""The router by token: its weights, gradient, cache and stored state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from client_agent.experts.routed_experts import inject_experts
from client_agent.experts.router import RoutedPasses, consistency
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.training.loop import iterate_batches
from schemas.strategies.fed_vemoe import FedVemoeOptions
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


def test_router_weighs_tokens_by_base_hidden_state(base: BaseModel) -> None:
    with torch.no_grad():
        decoder = base.model.get_submodule(base.parts.decoder)
        hidden = decoder(input_ids=IDS, use_cache=False).last_hidden_state
    with inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        with_router(adapter)
        routed = logits_of(base, IDS)
        private = adapter.private_state()
        u = np.stack([private[f"router.x{k}.u"] for k in (1, 5)])
        c = np.stack([private[f"router.x{k}.c"] for k in (1, 5)])
        scores = np.log([0.5, 0.3]) + (hidden.numpy() @ u.T + c) / SOFT.gamma
        alphas = torch.from_numpy(np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).float()
        weights = adapter.bank.specialist_weights
        assert weights is not None
        torch.testing.assert_close(weights, alphas, atol=1e-5, rtol=1e-4)
        adapter.choose((1,))
        assert adapter.bank.specialist_weights is None
        assert (logits_of(base, IDS) - routed).abs().max() > 0.01


def test_newborn_router_has_the_responsibilities_as_weights(base: BaseModel) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        adapter.responsibilities = {1: 0.6, 2: 0.2, 5: 0.2}
        adapter.choose((1, 2))
        routed = logits_of(base, IDS)
        lora = adapter.as_lora()
        weights = adapter.bank.specialist_weights
        assert weights is not None
        torch.testing.assert_close(weights, torch.tensor([0.75, 0.25]).expand(2, 6, 2))
        adapter.choose((1,))
        adapter.bank.select((1, 2), torch.tensor([0.75, 0.25]))
        torch.testing.assert_close(logits_of(base, IDS), routed)
        for path, factors in adapter.bank.as_lora().items():
            np.testing.assert_allclose(lora[path].B, factors.B, atol=1e-7)


def test_consistency_trains_router_alike_under_gradient_checkpointing(
    base: BaseModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference took the mean weights without a gradient, so that its term did nothing (defect 1).

    Gradient checkpointing runs layers twice: what is read of a step's tokens is still read once.
    """
    plan = TRAINING.model_copy(update={"accumulation": 2, "steps": 3, "max_grad_norm": None})
    read_hidden, read = RoutedPasses.read_hidden, list[torch.Tensor]()
    monkeypatch.setattr(
        RoutedPasses, "read_hidden", lambda passes: read.append(read_hidden(passes)) or read[-1]
    )
    moved, hidden = {}, {}
    for checkpointing, weight in ((False, 0.0), (False, 50.0), (True, 50.0)):
        routing = FedVemoeOptions(top_m=3, explore_rounds=0, consistency=weight)
        steps = plan.model_copy(update={"gradient_checkpointing": checkpointing})
        read.clear()
        with inject_experts(base, PLAN, {}, EXPERTS, routing, seed=0) as adapter:
            adapter.load(random_tensors(adapter.layout, scale=0.3))
            with_router(adapter)
            before = adapter.private_state()
            penalty = adapter.penalty(examples, 64, 1)
            assert (penalty is None) == (weight == 0)
            train_examples(base, adapter, examples, steps, penalty=penalty)
            after = adapter.private_state()
            assert not np.array_equal(after["router.x1.u"], before["router.x1.u"])
            assert np.array_equal(after["router.x2.u"], before["router.x2.u"])  # was not chosen
            moved[checkpointing, weight] = after["router.x1.u"] - before["router.x1.u"]
            hidden[checkpointing, weight] = list(read)
    assert not np.allclose(moved[False, 0.0], moved[False, 50.0], atol=1e-4)
    np.testing.assert_allclose(moved[True, 50.0], moved[False, 50.0], atol=1e-6)
    texts = encode_for(base, examples, 64)
    batches = iterate_batches(texts, plan.batch_size, seed=0, round_number=1)
    for plain, checkpointed in zip(hidden[False, 50.0], hidden[True, 50.0], strict=True):
        tokens = sum(len(text.ids) for _ in range(plan.accumulation) for text in next(batches))
        assert len(plain) == tokens
        torch.testing.assert_close(plain, checkpointed)


def test_consistency_is_a_kl_with_a_gradient(base: BaseModel) -> None:
    r = {1: 0.5, 5: 0.25}
    weights = torch.tensor([[0.9, 0.1], [0.5, 0.5]], requires_grad=True)
    value = consistency(weights, r)
    expected = 0.7 * np.log(0.7 / (2 / 3)) + 0.3 * np.log(0.3 / (1 / 3))
    assert value.item() == pytest.approx(expected, abs=1e-6)
    value.backward()
    assert weights.grad is not None
    assert weights.grad.abs().min() > 0


def test_generation_with_a_cache_routes_as_without(base: BaseModel) -> None:
    """A token is weighed by its context, which a single pass over the newest token would not have."""
    with inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        with_router(adapter)
        answers = [
            base.model.generate(  # type: ignore[operator]
                input_ids=IDS,
                attention_mask=torch.ones_like(IDS),
                generation_config=GenerationConfig(
                    max_new_tokens=8, do_sample=False, use_cache=cached, pad_token_id=0
                ),
                output_logits=True,
                return_dict_in_generate=True,
            )
            for cached in (True, False)
        ]
        for with_cache, without in zip(answers[0].logits, answers[1].logits, strict=True):
            torch.testing.assert_close(with_cache, without, atol=1e-4, rtol=1e-3)


def test_router_survives_births_and_deaths_of_experts(base: BaseModel) -> None:
    """The reference lost its router at every restart (defect 9)."""
    with inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0) as adapter:
        with_router(adapter)
        private = adapter.private_state()
    with inject_experts(base, PLAN, {}, (0, 1, 5, 7), SOFT, seed=0) as later:  # 2 was pruned, 7 was born
        later.load_private(private)
        stored = later.private_state()
        assert later.chosen == (1, 5)
        np.testing.assert_array_equal(stored["router.x5.u"], private["router.x5.u"])
        assert not stored["router.x7.u"].any()
        assert "router.x2.u" not in stored
