"""A plan is opened once, by one function; a file is a strategy by what it defines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import coordinator
from coordinator.strategies.base import Strategy
from coordinator.strategies.opening import make, names, open_plan
from schemas.messages.federations import FederationPlan

SOURCES = [(path.name, path.read_text("utf-8")) for path in Path(coordinator.__file__).parent.rglob("*.py")]


def _nodes(word: str) -> list[tuple[str, ast.AST]]:
    """Return the nodes of the files that contain a word, with the names of the files."""
    return [(name, node) for name, text in SOURCES if word in text for node in ast.walk(ast.parse(text))]


def test_a_plan_opens_with_the_strategy_and_options_it_names() -> None:
    plan = FederationPlan.model_validate(
        {"name": "n", "strategy": {"name": "het_lora", "options": {"r_min": 3}}}
    )
    opened = open_plan(plan)
    assert opened.plan is plan
    assert opened.traits.least_rank == 3


def test_files_without_options_are_no_strategies() -> None:
    assert not {"base", "averaging", "capabilities", "opening"} & {*names()}
    assert "fedavg" in names()


def test_a_strategy_is_made_by_name_in_one_place() -> None:
    calls = [(name, ast.unparse(node.func)) for name, node in _nodes("make(") if isinstance(node, ast.Call)]
    makes = [name for name, called in calls if called.rpartition(".")[2] == "make"]
    assert sorted(makes) == ["opening.py", "store.py"]  # the second is an insert of SQLAlchemy


def test_nobody_asks_for_the_class_or_compares_the_name_of_a_strategy() -> None:
    assert not [name for name, text in SOURCES if re.search(r"isinstance\([^,]*strategy", text)]
    for _, node in _nodes("strategy.name"):
        assert not (isinstance(node, ast.Compare) and "strategy.name" in ast.unparse(node))


@pytest.mark.parametrize("name", names())
def test_a_strategy_overrides_what_its_traits_announce(name: str) -> None:
    strategy = make(name, {})
    traits = strategy.traits
    announced = {
        "travels": traits.part_travels,
        "beside": traits.extra_tensors,
        "combine": traits.combines,
        "strength": traits.rescales,
        "base_delta": traits.base_delta,
        "step": traits.sums,
    }
    overridden = {
        method: getattr(type(strategy), method) is not getattr(Strategy, method) for method in announced
    }
    assert overridden == announced
    knows_factors = traits.part_travels or traits.combines or traits.base_delta or traits.mixed_ranks
    assert traits.lora_only == (knows_factors or name == "ditto")  # whose clients hold two LoRA
    assert traits.combines or not traits.rescales
