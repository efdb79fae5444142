"""A strategy is one file on each side: both sides have the same ones, and mean the same by their options."""

from __future__ import annotations

import itertools
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import JsonValue

from client_agent.base_delta import BaseDeltaForm, BaseDeltaPart
from client_agent.experts.part import BankOfExperts, ServedBank
from client_agent.rounds import strategy as agent_side
from client_agent.rounds.mixed_ranks import MixedRanks
from client_agent.rounds.sent_factors import SentFactors
from coordinator.strategies import opening as coordinator_side
from schemas.maths.adapter import lora_layout


def test_both_sides_have_the_same_strategies() -> None:
    assert agent_side.strategy_names() == coordinator_side.names()


def _choices(name: str) -> list[dict[str, JsonValue]]:
    """Every combination of the options that are chosen from a list, the others at their defaults."""
    options = coordinator_side.load(name).Options
    listed = {
        field: get_args(info.annotation)
        for field, info in options.model_fields.items()
        if get_origin(info.annotation) is Literal
    }
    combinations: Any = itertools.product(*listed.values())
    return [
        options.model_validate(dict(zip(listed, chosen, strict=True))).model_dump(mode="json")
        for chosen in combinations
    ]


@pytest.mark.parametrize("name", coordinator_side.names())
def test_the_agent_understands_what_a_plan_says(name: str) -> None:
    for options in _choices(name):
        understood = agent_side.load_strategy(name, options)
        assert understood.gated == coordinator_side.make(name, options).traits.gated


@pytest.mark.parametrize("name", coordinator_side.names())
def test_both_sides_mean_the_same_tensors_to_travel(name: str) -> None:
    here, there = agent_side.load_strategy(name), coordinator_side.make(name, {})
    sends_a_part = any(isinstance(part, SentFactors) for part in here.parts)
    assert sends_a_part == there.traits.part_travels
    if sends_a_part:
        tensors = lora_layout(2, {"q": (4, 4), "down": (4, 8)}, 2)
        travelling = {tensor for tensor in tensors if here.travels(tensor)}
        assert travelling == {tensor for tensor in tensors if there.travels(tensor)}
        assert 0 < len(travelling) < len(tensors)


@pytest.mark.parametrize("name", coordinator_side.names())
def test_both_sides_say_whether_weights_come_with_something_to_fold(name: str) -> None:
    here, there = agent_side.load_strategy(name), coordinator_side.make(name, {})
    assert isinstance(here.served, BaseDeltaForm) == there.traits.base_delta


@pytest.mark.parametrize("name", coordinator_side.names())
def test_both_sides_say_whether_a_prior_travels_beside_the_adapter(name: str) -> None:
    here, there = agent_side.load_strategy(name), coordinator_side.make(name, {})
    layout = lora_layout(2, {"q": (4, 4), "down": (4, 8)}, 2)
    beside = {name: shape for part in here.parts for name, shape in part.layout_beside(layout).items()}
    assert beside == (there.beside(layout) if there.traits.extra_tensors else {})


@pytest.mark.parametrize("name", agent_side.strategy_names())
def test_parts_of_a_strategy_agree_with_its_form(name: str) -> None:
    strategy = agent_side.load_strategy(name)
    changes_base = any(isinstance(part, BaseDeltaPart) for part in strategy.parts)
    assert changes_base == isinstance(strategy.served, BaseDeltaForm)
    assert any(isinstance(part, MixedRanks) for part in strategy.parts) == strategy.served.mixed_ranks
    assert any(isinstance(part, BankOfExperts) for part in strategy.parts) == isinstance(
        strategy.served, ServedBank
    )
