"""A client's choice among experts: trained experts, remembered choices, and the router by token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from client_agent.adapters.base import require_bare
from client_agent.adapters.expert_bank import experts_in
from client_agent.errors import LayoutMismatch
from client_agent.experts.memory import Choice, ExpertMemory
from client_agent.experts.probe_set import Prober, probe_texts
from client_agent.experts.routed_experts import inject_experts
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from tests.scene.models import logits_of
from tests.scene.tensors import random_tensors, zero_tensors
from tests.unit.client_agent.experts.routed_bank import EXPERTS, HARD, IDS, PLAN, SOFT


@pytest.fixture
def memory(tmp_path: Path) -> ExpertMemory:
    (tmp_path / "experts.json").write_text(f'{{"secret": "{"7" * 64}"}}')  # which specialists are drawn
    return ExpertMemory(tmp_path / "experts.json")


def prober(base: BaseModel, examples: list[Example], memory: ExpertMemory) -> Prober:
    return Prober(base, probe_texts(base, examples, 8, 64), memory.losses)


def test_best_specialist_acts_at_weight_one(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        losses = prober(base, examples, memory).losses(adapter.bank).specialists
        best = min(losses, key=losses.__getitem__)
        assert adapter.chosen == (best,)
        assert adapter.responsibilities[best] == max(adapter.responsibilities.values())
        assert adapter.router is None
        assert experts_in(adapter.named_parameters()) == (0, best)
        before = logits_of(base, IDS)
        private = adapter.private_state()
        state = adapter.state()
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as again:  # without data, as for an export
        again.load(state)
        again.load_private(private)
        assert again.chosen == (best,)
        torch.testing.assert_close(logits_of(base, IDS), before)


def test_choices_and_losses_survive_a_restart(
    base: BaseModel, examples: list[Example], memory: ExpertMemory, tmp_path: Path
) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(random_tensors(adapter.layout, scale=0.3))
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
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        assert adapter.begin_round(1, 6, 4) == planned
    (tmp_path / "experts.json").write_text("{")
    assert ExpertMemory(tmp_path / "experts.json").secret != memory.secret


def test_clients_reject_worse_bank_after_exploration_only(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    probing = prober(base, examples, memory)
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(probing, memory)
        adapter.load(zero_tensors(adapter.layout))
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


def test_rejecting_client_trains_the_newborn_for_a_round(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    choice = Choice(responsibilities={1: 0.9, 2: 0.1}, trained=(1,), exploring=False, rejects=True)
    memory.record(3, choice)
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        for _ in range(2):  # the same after a restart
            (turn,) = adapter.begin_round(4, 6, 4)
            assert turn.specialists == memory.rounds[4].trained == (5,)
            assert memory.rounds[4].responsibilities == pytest.approx({1: 0.05, 2: 0.05, 5: 0.9})
        adapter.end_round()
        (turn,) = adapter.begin_round(5, 6, 4)
        assert turn.specialists == adapter.chosen


def test_restarted_bank_is_explored_again(
    base: BaseModel, examples: list[Example], memory: ExpertMemory
) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(prober(base, examples, memory), memory)
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        exploring = {}
        for adapter.since, number in ((0, 5), (4, 5), (4, 6), (4, 7)):
            adapter.begin_round(number, 12, 4)
            exploring[adapter.since, number] = memory.rounds[number].exploring
    assert exploring == {(0, 5): False, (4, 5): True, (4, 6): True, (4, 7): False}


def test_client_without_a_probe_set_never_rejects(base: BaseModel, memory: ExpertMemory) -> None:
    with inject_experts(base, PLAN, {}, EXPERTS, HARD, seed=0) as adapter:
        adapter.probe_with(None, memory)
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        assert set(adapter.responsibilities.values()) == {1 / 3}
        for number in (1, 2, 3, 4):
            (first, *_) = adapter.begin_round(number, 4, 4)
            adapter.end_round()
            assert adapter.chosen == first.specialists
            assert not memory.rounds[number].rejects
        assert memory.rounds[3].trained == memory.rounds[4].trained  # settled


def test_bank_with_too_few_specialists_is_refused(base: BaseModel) -> None:
    with pytest.raises(LayoutMismatch, match="top_m"):
        inject_experts(base, PLAN, {}, (0, 1), SOFT, seed=0)
    require_bare(base)
