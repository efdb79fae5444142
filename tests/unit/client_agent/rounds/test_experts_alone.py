"""A silo trains a bank of experts alone: turns, the probe set, the choice, and the file of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.errors import SettingsUnusable
from client_agent.experts import memory
from client_agent.experts.memory import EXPERTS, ExpertMemory
from client_agent.experts.part import BankOfExperts, bank_alone, parts_of_file
from client_agent.experts.routed_experts import RoutedExperts
from client_agent.model.examples import Example
from client_agent.model.tokens import TokenizedText
from client_agent.rounds import train
from client_agent.rounds.checkpoints import reopened
from client_agent.rounds.standalone import train_alone
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.rate_store import RateStore
from client_agent.training import loop
from client_agent.training.data import with_probe
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import iterate_batches
from client_agent.training.silo import Silo
from schemas.maths.bank import expert_tensors
from schemas.messages.federations import AdapterPlan, FederationPlan
from schemas.strategies.fed_vemoe import FedVemoeOptions
from tests.scene.plans import federation_plan

PLAN = federation_plan(
    adapter={"kind": "lora", "rank": 2, "roles": ["v", "down"], "layers": 2},
    training={"steps": 4, "batch_size": 4, "learning_rate": 0.01, "max_length": 64},
    rounds={"total": 3, "min_clients": 1},
    scores={"examples": 12, "new_tokens": 0},
)


def bank(**routing: object) -> BankOfExperts:
    return BankOfExperts(FedVemoeOptions(**{"explore_rounds": 2, **routing}), 4)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def drawn_specialists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all banks draw the same specialists."""
    monkeypatch.setattr(memory.secrets, "token_hex", lambda _: "5" * 64)


def memory_in(folder: Path) -> ExpertMemory:
    return ExpertMemory(folder / EXPERTS)


@pytest.fixture
def wide(silo: Silo, examples: list[Example]) -> Silo:
    """A silo with enough training examples for a probe set."""
    more = [Example(f"say {e.prompt}", e.completion) for e in examples]
    return replace(silo, data=replace(silo.data, train=(*examples, *more)))


def train_bank_alone(
    silo: Silo, folder: Path, silo_bank: BankOfExperts, plan: FederationPlan = PLAN
) -> list[TrainingResult]:
    return list(train_alone(silo, plan, None, lambda: False, RateStore(folder), folder, (silo_bank,)))


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[int]:
    return {
        k
        for k in range(5)
        if any(
            not np.array_equal(v, expert_tensors(k, after)[n]) for n, v in expert_tensors(k, before).items()
        )
    }


@pytest.mark.parametrize("top_m", [2, 3])
def test_silo_alone_trains_drawn_experts_and_reopens_them(wide: Silo, tmp_path: Path, top_m: int) -> None:
    """Defect 9: the reference evaluated with a random router, another temperature, and all experts."""
    silo_bank = bank(top_m=top_m, gamma=0.5)
    rounds = train_bank_alone(wide, tmp_path, silo_bank)
    choices = memory_in(tmp_path)
    for number, result in enumerate(rounds, start=1):
        choice = choices.rounds[number]
        assert changed(result.start, result.adapter) == {0, *choice.trained}
        assert len(choice.trained) == (2 if number < 3 else top_m - 1)
        assert choice.local is not None
    last = TrainingResult.from_bytes(rounds[-1].to_bytes())
    loss = last.scores.trained["loss"].value
    assert (choices.rounds[3].local or 99) < max(choices.losses.values()) - 0.1
    with reopened(wide, PLAN, None, last, "trained", parts_of_file(last)) as (adapter, _):
        assert isinstance(adapter, RoutedExperts)
        assert (adapter.router is not None) == (top_m > 2)
        again = evaluate(wide.base, wide.data.test, PLAN.scores, max_length=64)
        assert again.loss == pytest.approx(loss, abs=1e-6)


def test_bank_over_p_and_q_refuses_private_rank() -> None:
    plan = FederationPlan(name="x", strategy=PLAN.strategy, adapter=AdapterPlan(private_rank=2))
    with pytest.raises(SettingsUnusable, match="private_rank"):
        bank_alone(plan, 4, 2)
    assert bank_alone(PLAN, 4, 3).routing.specialists == 2


def test_silo_trains_experts_over_p_and_q(wide: Silo, tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"adapter": AdapterPlan(rank=4, blocks=2, roles=("v", "down"))})
    silo_bank = bank(top_m=3)
    rounds = train_bank_alone(wide, tmp_path, silo_bank, plan)
    with reopened(wide, plan, None, rounds[-1], "trained", parts_of_file(rounds[-1])):
        loss = evaluate(wide.base, wide.data.test, plan.scores, max_length=64).loss
    assert loss == pytest.approx(rounds[-1].scores.trained["loss"].value, abs=1e-6)
    assert changed(rounds[-1].start, rounds[-1].adapter) == {0, *memory_in(tmp_path).rounds[3].trained}


def test_silo_with_few_examples_trains_without_probe(silo: Silo, tmp_path: Path) -> None:
    silo_bank = bank()
    train_bank_alone(silo, tmp_path, silo_bank)
    choices = memory_in(tmp_path)
    assert not choices.losses
    assert all(choice.local is None for choice in choices.rounds.values())


def test_turns_read_different_batches_and_cover_all_texts(
    wide: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 7: every round of the reference began the same stream again, and the rest was never read."""
    plan = PLAN.model_copy(
        update={
            "training": PLAN.training.model_copy(update={"steps": 2, "batch_size": 8}),
            "rounds": PLAN.rounds.model_copy(update={"total": 8}),
        }
    )
    turns: list[list[frozenset[TokenizedText]]] = []

    def recorded(*arguments: Any, **options: Any) -> Iterator[list[TokenizedText]]:
        turns.append([])
        for batch in iterate_batches(*arguments, **options):
            turns[-1].append(frozenset(batch))
            yield batch

    monkeypatch.setattr(loop, "iterate_batches", recorded)
    silo_bank = bank(explore_rounds=4)
    train_bank_alone(wide, tmp_path, silo_bank, plan)
    assert [len(turn) for turn in turns] == [1] * 8 + [2] * 4  # two experts in turn, then one
    assert len({turn[0] for turn in turns[:8]}) == 8
    assert len({turn[0] for turn in turns[8:]}) == 4
    read = {text for turn in turns for batch in turn for text in batch}
    training = with_probe(wide.data, silo_bank.routing.probe_examples).train
    assert read == set(wide.encoded(training, plan.training.max_length))


@pytest.mark.parametrize("digit", ["5", "7", "a"])
def test_rate_is_searched_before_a_bank_chooses(
    digit: str, wide: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The searched specialist must not depend on the secret by which equal experts are drawn."""
    monkeypatch.setattr(memory.secrets, "token_hex", lambda _: digit * 64)
    chosen: list[tuple[int, ...]] = []

    def recorded(_: Silo, adapter: RoutedExperts, *arguments: Any, **options: Any) -> float:
        adapter.load(adapter.state())
        chosen.append(adapter.chosen)
        return 0.01

    monkeypatch.setattr(train, "search_rate", recorded)
    training = PLAN.training.model_copy(update={"learning_rate": "auto"})
    train_bank_alone(wide, tmp_path, bank(), PLAN.model_copy(update={"training": training}))
    assert chosen == [(1,)]
