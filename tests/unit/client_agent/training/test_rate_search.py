"""The search of a learning rate: rates tried, stored results, and unchanged adapters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject, inject_lora
from client_agent.errors import LossNotFinite, Stopped
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.adapter_in_place import put_in_place
from client_agent.rounds.part import Setting
from client_agent.rounds.strategy import load_strategy
from client_agent.training.data import SiloData
from client_agent.training.loop import DEFAULT_OPTIONS, TrainingOptions
from client_agent.training.rate_search import GRID, RateStore, next_rate, search_key, search_rate, sides
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, TrainingPlan

ADAPTER = AdapterPlan(kind="lora", rank=4, roles=["v", "down"])
PLAN = TrainingPlan(steps=3, batch_size=4, max_length=64)
KEY = "0" * 64


def never_stop() -> bool:
    return False


def walk(loss: Callable[[float], float]) -> list[float]:
    """Return the rates that a search tries if a rate's loss is as given."""
    losses: dict[float, float] = {}
    while (rate := next_rate(losses)) is not None:
        losses[rate] = loss(rate)
    return list(losses)


@pytest.fixture
def silo(tiny: Callable[..., BaseModel], examples: list[Example]) -> Silo:
    return Silo(tiny(), SiloData(tuple(examples[:16]), (), tuple(examples[16:])), None)


def tensors(adapter: Adapter) -> dict[str, np.ndarray]:
    return {**adapter.state(), **adapter.private_state()}


def test_search_follows_the_improving_direction_of_the_grid() -> None:
    assert walk(lambda rate: abs(np.log(rate / 1e-3))) == [1e-3, 3e-3, 3e-4]
    assert walk(lambda rate: abs(np.log(rate / 3e-3))) == [1e-3, 3e-3, 1e-2]
    assert walk(lambda rate: abs(np.log(rate / 1e-4))) == [1e-3, 3e-3, 3e-4, 1e-4, 3e-5]
    assert walk(lambda rate: -rate) == [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    assert walk(lambda rate: 1.0) == [1e-3, 3e-3, 3e-4]


def test_diverging_rate_is_worse_than_any_other() -> None:
    assert walk(lambda rate: inf if rate > 1e-3 else 1 / rate) == [1e-3, 3e-3, 3e-4]
    assert walk(lambda rate: inf if rate > 1e-4 else 1.0) == [1e-3, 3e-3, 3e-4, 1e-4, 3e-5]


def test_rate_is_searched_under_the_schedule(silo: Silo, tmp_path: Path) -> None:
    rates = []
    for schedule in ("constant", "linear"):
        plan = PLAN.model_copy(update={"schedule": schedule, "warmup_steps": 2})
        store = RateStore(tmp_path / schedule)
        with inject_lora(silo.base, ADAPTER) as adapter:
            search_rate(silo, adapter, plan, store, KEY, stop=never_stop)
        rates.append({tried.rate: tried.loss for tried in store.read(KEY).tried})
    constant, linear = rates
    assert constant[1e-3] != linear[1e-3]


@pytest.mark.slow
def test_best_rate_is_stored_and_not_searched_again(silo: Silo, tmp_path: Path) -> None:
    store = RateStore(tmp_path)
    with inject_lora(silo.base, ADAPTER) as adapter:
        before, random_state = tensors(adapter), torch.get_rng_state()
        chosen = search_rate(silo, adapter, PLAN, store, KEY, stop=never_stop)
        search = store.read(KEY)
        assert search.chosen == chosen
        assert 3 <= len(search.tried) <= 5
        best = min(search.tried, key=lambda tried: inf if tried.loss is None else tried.loss)
        assert best.rate == chosen
        assert {tried.rate for tried in search.tried} <= set(GRID)
        after = tensors(adapter)
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert torch.equal(random_state, torch.get_rng_state())
        assert search_rate(silo, adapter, PLAN, store, KEY, stop=lambda: True) == chosen
    again = RateStore(tmp_path / "again")
    with inject_lora(silo.base, ADAPTER) as adapter:
        assert search_rate(silo, adapter, PLAN, again, KEY, stop=never_stop) == chosen
    assert again.read(KEY) == search


def test_stopped_search_continues_with_the_next_rate(silo: Silo, tmp_path: Path) -> None:
    store = RateStore(tmp_path)

    def stop() -> bool:
        return bool(store.read(KEY).tried)  # once the first rate is stored

    with inject_lora(silo.base, ADAPTER) as adapter:
        before = tensors(adapter)
        with pytest.raises(Stopped):
            search_rate(silo, adapter, PLAN, store, KEY, stop=stop)
        assert all(np.array_equal(values, before[name]) for name, values in tensors(adapter).items())
        (first,) = store.read(KEY).tried
        assert store.read(KEY).chosen is None
        search_rate(silo, adapter, PLAN, store, KEY, stop=never_stop)
    assert store.read(KEY).tried[0] == first
    assert len({tried.rate for tried in store.read(KEY).tried}) == len(store.read(KEY).tried) >= 3


def test_damaged_entry_is_ignored_with_a_warning(
    silo: Silo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = RateStore(tmp_path)
    (tmp_path / f"{KEY}.json").write_text("{")
    with inject_lora(silo.base, ADAPTER) as adapter, caplog.at_level(logging.INFO):
        chosen = search_rate(silo, adapter, PLAN, store, KEY, stop=never_stop)
    assert f"{KEY}.json is damaged and ignored" in caplog.text
    assert f"learning rate: chosen: {chosen:g}" in caplog.text
    assert store.newest() == store.read(KEY)


def test_divergence_at_all_rates_is_an_error(silo: Silo, tmp_path: Path) -> None:
    with torch.no_grad():
        next(iter(silo.base.model.parameters())).fill_(float("nan"))
    store = RateStore(tmp_path)
    with (
        inject_lora(silo.base, ADAPTER) as adapter,
        pytest.raises(LossNotFinite, match="every learning rate"),
    ):
        search_rate(silo, adapter, PLAN, store, KEY, stop=never_stop)
    assert [tried.loss for tried in store.read(KEY).tried] == [None] * 5


def test_few_validation_examples_are_replaced_by_training_halves() -> None:
    def data(train: int, validation: int) -> SiloData:
        rows = [Example(f"p{i}", "c") for i in range(train + validation)]
        return SiloData(tuple(rows[:train]), tuple(rows[train:]), ())

    ((trained, scored),) = sides(data(100, 80))
    assert (len(trained), len(scored)) == (100, 64)
    for train, validation in ((30, 3), (200, 15), (40, 20)):
        first, second = sides(data(train, validation))
        assert len(first[0]) + len(second[0]) == train + validation
        assert not {e.key for e in first[0]} & {e.key for e in first[1]}
        assert {e.key for e in second[1]} <= {e.key for e in first[0]}
    assert sides(data(1, 0)) == [([Example("p0", "c")], [Example("p0", "c")])]


def test_search_is_shared_by_methods_with_equal_tensors(silo: Silo) -> None:
    def key(
        plan: TrainingPlan,
        strategy: str = "fedavg",
        data: SiloData = silo.data,
        adapter: AdapterPlan = ADAPTER,
        injected: AdapterPlan | None = None,
        options: TrainingOptions = DEFAULT_OPTIONS,
    ) -> str:
        setting = Setting(silo, injected or adapter, {}, seed=0, max_length=64, home=Path())
        with put_in_place(setting, load_strategy(strategy).parts) as placed:
            return search_key(silo.base, placed, data, adapter, plan, frames="none", options=options)

    usual = key(PLAN)
    assert key(PLAN.model_copy(update={"seed": 7})) == usual
    assert key(PLAN.model_copy(update={"steps": 4})) != usual
    assert key(PLAN, "fedmosaic") == usual != key(PLAN, "ffa_lora")
    wide = ADAPTER.model_copy(update={"rank": 8})
    assert key(PLAN, adapter=wide) != usual
    assert key(PLAN, adapter=wide, injected=ADAPTER) == key(PLAN, adapter=wide)  # its rank was pruned
    silo.base.tokenizer.chat_template = "{{ messages[0].content }}"
    assert key(PLAN) != usual
    silo.base.tokenizer.chat_template = None
    assert key(PLAN) == usual
    with inject(silo.base, ADAPTER, {}, gated=False, seed=0) as adapter:
        facts = (silo.base, adapter, silo.data, ADAPTER, PLAN)
        assert search_key(*facts, frames="none", options=TrainingOptions(optimizer="adamw8bit")) != usual
    fewer = SiloData(silo.data.train[:-1], silo.data.validation, silo.data.test)
    assert key(PLAN, data=fewer) != usual
    assert key(PLAN, options=TrainingOptions(packing=True)) != usual
