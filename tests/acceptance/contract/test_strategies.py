"""Strategies of agent and coordinator: the same options, and parts that agree with the declared facts."""

from __future__ import annotations

import itertools
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from client_agent.base_delta import BaseDeltaForm, BaseDeltaPart
from client_agent.distillation.part import Distillation
from client_agent.experts.part import BankOfExperts, ServedBank
from client_agent.rounds.mixed_ranks import MixedRanks
from client_agent.rounds.part import Part
from client_agent.rounds.sent_factors import SentFactors
from client_agent.rounds.strategy import load_strategy
from client_agent.strategies.fedmosaic import GlobalBranch
from coordinator.strategies.opening import make
from schemas.maths.adapter import lora_layout
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.registry import strategy_names, strategy_options

every_strategy = pytest.mark.parametrize("name", strategy_names())


def _choices(name: str) -> list[StrategyOptions]:
    """Return every combination of the options that are chosen from a list, or that may be an object."""
    declared = strategy_options(name)
    listed = {
        field: get_args(info.annotation)
        for field, info in declared.model_fields.items()
        if get_origin(info.annotation) is Literal
    }
    if "distil" in declared.model_fields:
        listed["distil"] = (None, {})
    combinations: Any = itertools.product(*listed.values())
    return [declared.model_validate(dict(zip(listed, chosen, strict=True))) for chosen in combinations]


@every_strategy
def test_both_sides_make_strategies_from_the_same_options(name: str) -> None:
    for options in _choices(name):
        plan = options.model_dump(mode="json")
        agent, coordinator = load_strategy(name, plan), make(name, plan)
        assert agent.options == coordinator.options == options
        for half in (agent, coordinator):
            assert issubclass(type(options), get_type_hints(type(half))["options"])


@every_strategy
def test_parts_of_a_strategy_agree_with_its_facts(name: str) -> None:
    layout = lora_layout(2, {"q": (4, 4), "down": (4, 8)}, 2)
    for options in _choices(name):
        strategy = load_strategy(name, options.model_dump(mode="json"))
        form, kinds = strategy.served, {type(part) for part in strategy.parts}
        has: dict[type[Part], bool] = {
            BaseDeltaPart: options.base_delta,
            MixedRanks: options.mixed_ranks,
            SentFactors: not all(map(options.travels, layout)),
            Distillation: options.distilled_texts is not None,
            BankOfExperts: bool(options.counts(["x1.l0.q.A"])),
        }
        assert {kind: kind in kinds for kind in has} == has
        assert isinstance(form, BaseDeltaForm) == options.base_delta
        assert isinstance(form, GlobalBranch) == options.gated
        assert isinstance(form, ServedBank) == (BankOfExperts in kinds)
        assert form.mixed_ranks == options.mixed_ranks
        assert options.adds_losses == all(part.adds_losses for part in strategy.parts)
        assert options.only_steps == all("private steps" not in part.excludes for part in strategy.parts)


@pytest.mark.parametrize(("name", "factor"), [("fedsa_lora", "A"), ("ffa_lora", "B")])
def test_some_of_the_tensors_travel(name: str, factor: str) -> None:
    layout = lora_layout(2, {"q": (4, 4), "down": (4, 8)}, 2)
    options = strategy_options(name)()
    assert [tensor for tensor in layout if options.travels(tensor)] == [
        tensor for tensor in layout if tensor.endswith(f".{factor}")
    ]
