"""A client's choice among experts: what it trains, what it remembers, and its router by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from client_agent.adapters.base import require_bare
from client_agent.adapters.expert_bank import experts_in
from client_agent.errors import LayoutMismatch
from client_agent.experts.inject import inject_experts
from client_agent.experts.memory import Choice, ExpertMemory
from client_agent.experts.probing import Prober, probe_texts
from client_agent.experts.routed import RoutedExperts
from client_agent.experts.router import consistency
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.strategies.base import Routing
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.local_training import train_examples

PLAN = AdapterPlan(kind="lora", rank=2, roles=("q", "v", "down"))
TRAINING = TrainingPlan(steps=2, batch_size=4, max_length=64)
HARD = Routing(explore_rounds=2)
SOFT = Routing(top_m=3, explore_rounds=0, gamma=0.7)
EXPERTS = (0, 1, 2, 5)
IDS = torch.tensor([[1, 5, 9, 14, 7, 22], [1, 8, 30, 6, 11, 2]])


def noise(adapter: RoutedExperts, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: (0.3 * rng.standard_normal(s)).astype(np.float32) for n, s in adapter.layout.items()}


def logits(base: BaseModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return base.model(input_ids=ids).logits  # type: ignore[operator]


@pytest.fixture
def base(tiny: Callable[..., BaseModel]) -> Iterator[BaseModel]:
    model = tiny()
    yield model
    require_bare(model)


@pytest.fixture
def memory(tmp_path: Path) -> ExpertMemory:
    (tmp_path / "experts.json").write_text(f'{{"secret": "{"7" * 64}"}}')  # which specialists are drawn
    return ExpertMemory(tmp_path / "experts.json")


def prober(base: BaseModel, examples: list[Example], memory: ExpertMemory) -> Prober:
    return Prober(base, probe_texts(base, examples, 8, 64), memory.losses)


def test_the_best_specialist_acts_at_weight_one(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(noise(adapter))
        losses = prober(base, examples, memory).losses(adapter.bank).specialists
        best = min(losses, key=losses.__getitem__)
        assert adapter.chosen == (best,)
        assert adapter.responsibilities[best] == max(adapter.responsibilities.values())
        assert adapter.router is None
        assert experts_in(adapter.named_parameters()) == (0, best)
        before = logits(base)
        private = adapter.private_state()
        state = adapter.state()
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as again:  # without data, as for an export
        again.load(state)
        again.load_private(private)
        assert again.chosen == (best,)
        torch.testing.assert_close(logits(base), before)


def test_choices_and_losses_outlive_a_restart(
    base: BaseModel, examples: list[Example], memory: ExpertMemory, tmp_path: Path
) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(noise(adapter))
        planned = adapter.begin_round(1, 6, 4)
        assert [turn.steps for turn in planned] == [2, 2]
        adapter.end_round()
    again = ExpertMemory(tmp_path / "experts.json")
    assert (again.secret, again.losses, again.rounds) == (memory.secret, memory.losses, memory.rounds)
    choice = again.rounds[1]
    assert choice.trained == tuple(turn.specialists[0] for turn in planned)
    assert choice.exploring
    assert not choice.rejects
    assert choice.local == pytest.approx(min(again.losses.values()))
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, again), again)
        adapter.load(noise(adapter))
        assert adapter.begin_round(1, 6, 4) == planned
    (tmp_path / "experts.json").write_text("{")
    assert ExpertMemory(tmp_path / "experts.json").secret != memory.secret


def test_a_client_whose_own_model_is_better_rejects_after_exploring_only(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    probing = prober(base, examples, memory)
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(probing, memory)
        adapter.load({name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()})
        adapter.begin_round(1, 6, 4)
        adapter.end_round()
        loss = memory.rounds[1].local
        assert loss is not None
        memory.rounds[1] = memory.rounds[1].model_copy(update={"local": loss / 2})  # as if trained further
        rejected = []
        for number in (2, 3):
            adapter.begin_round(number, 6, 4)
            rejected.append(memory.rounds[number].rejects)
        assert rejected == [False, True]
        assert memory.rounds[3].regret == pytest.approx(0.5)
        assert memory.rounds[3].fit == 0.0
    assert memory.local_before(3, "another probe set") is None


def test_a_client_that_rejected_all_trains_the_newborn_for_a_round(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    choice = Choice(responsibilities={1: 0.9, 2: 0.1}, trained=(1,), exploring=False, rejects=True)
    memory.record(3, choice)
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(noise(adapter))
        for _ in range(2):  # the same after a restart
            (turn,) = adapter.begin_round(4, 6, 4)
            assert turn.specialists == memory.rounds[4].trained == (5,)
            assert memory.rounds[4].responsibilities == pytest.approx({1: 0.05, 2: 0.05, 5: 0.9})
        adapter.end_round()
        (turn,) = adapter.begin_round(5, 6, 4)
        assert turn.specialists == adapter.chosen


def test_a_bank_that_began_anew_is_explored_again(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(noise(adapter))
        exploring = {}
        for adapter.since, number in ((0, 5), (4, 5), (4, 6), (4, 7)):
            adapter.begin_round(number, 12, 4)
            exploring[adapter.since, number] = memory.rounds[number].exploring
    assert exploring == {(0, 5): False, (4, 5): True, (4, 6): True, (4, 7): False}


def test_a_client_without_a_probe_set_never_rejects(base: BaseModel, memory: ExpertMemory) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(None, memory)
        adapter.load(noise(adapter))
        assert set(adapter.responsibilities.values()) == {1 / 3}
        for number in (1, 2, 3, 4):
            (first, *_) = adapter.begin_round(number, 4, 4)
            adapter.end_round()
            assert adapter.chosen == first.specialists
            assert not memory.rounds[number].rejects
        assert memory.rounds[3].trained == memory.rounds[4].trained  # settled


def with_router(adapter: RoutedExperts, seed: int = 1) -> None:
    """Choose experts 1 and 5, unequally responsible, with rows of a trained router."""
    rng = np.random.default_rng(seed)
    rows = {n: v for n, v in adapter.private_state().items() if n.startswith("router.")}
    trained = {n: np.asarray(0.5 * rng.standard_normal(v.shape), np.float32) for n, v in rows.items()}
    routing = {"routing.x1": 0.5, "routing.x2": 0.2, "routing.x5": 0.3}
    adapter.load_private(
        {
            **trained,
            **{name: np.array(r, np.float32) for name, r in routing.items()},
            "routing.chosen": np.array([1, 5], np.float32),
        }
    )


def test_the_router_weighs_tokens_by_the_base_models_hidden_state(base: BaseModel) -> None:
    with torch.no_grad():
        decoder = base.model.get_submodule(base.parts.decoder)
        hidden = decoder(input_ids=IDS, use_cache=False).last_hidden_state
    with inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0) as adapter:
        adapter.load(noise(adapter))
        with_router(adapter)
        routed = logits(base)
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
        assert (logits(base) - routed).abs().max() > 0.01


def test_a_newborn_router_has_the_responsibilities_as_weights(base: BaseModel) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, SOFT, seed=0) as adapter:
        adapter.load(noise(adapter))
        adapter.responsibilities = {1: 0.6, 2: 0.2, 5: 0.2}
        adapter.choose((1, 2))
        routed = logits(base)
        lora = adapter.as_lora()
        weights = adapter.bank.specialist_weights
        assert weights is not None
        torch.testing.assert_close(weights, torch.tensor([0.75, 0.25]).expand(2, 6, 2))
        adapter.choose((1,))
        adapter.bank.select((1, 2), torch.tensor([0.75, 0.25]))
        torch.testing.assert_close(logits(base), routed)
        for path, factors in adapter.bank.as_lora().items():
            np.testing.assert_allclose(lora[path].B, factors.B, atol=1e-7)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_consistency_moves_the_router_once_per_batch(
    base: BaseModel, examples: list[Example], checkpointing: bool
) -> None:
    """The reference took the mean weights without a gradient, so that its term did nothing (defect 1)."""
    plan = TRAINING.model_copy(
        update={"accumulation": 2, "gradient_checkpointing": checkpointing, "steps": 1, "max_grad_norm": None}
    )
    moved = {}
    for weight in (0.0, 50.0):
        routing = Routing(top_m=3, explore_rounds=0, consistency=weight)
        with inject_experts(base, PLAN, {}, EXPERTS, routing, seed=0) as adapter:
            adapter.load(noise(adapter))
            with_router(adapter)
            before = adapter.private_state()
            penalty = adapter.penalty(examples, 64, 1)
            assert (penalty is None) == (weight == 0)
            train_examples(base, adapter, examples, plan, seed=0, round_number=1, penalty=penalty)
            after = adapter.private_state()
            assert not np.array_equal(after["router.x1.u"], before["router.x1.u"])
            assert np.array_equal(after["router.x2.u"], before["router.x2.u"])  # was not chosen
            moved[weight] = after["router.x1.u"] - before["router.x1.u"]
    assert not np.allclose(moved[0.0], moved[50.0], atol=1e-4)


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
        adapter.load(noise(adapter))
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


def test_a_router_outlives_births_and_deaths_of_experts(base: BaseModel) -> None:
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


def test_a_bank_with_too_few_specialists_is_refused(base: BaseModel) -> None:
    with pytest.raises(LayoutMismatch, match="top_m"):
        inject_experts(base, PLAN, {}, (0, 1), SOFT, seed=0)
    require_bare(base)
