"""Opened plans, and the files that define strategies."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import coordinator
from coordinator.strategies.base import Strategy
from coordinator.strategies.opening import make, open_plan
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.registry import strategy_names
from tests.scene.plans import federation_plan

SOURCES = [(path.name, path.read_text("utf-8")) for path in Path(coordinator.__file__).parent.rglob("*.py")]


def _nodes(word: str) -> list[tuple[str, ast.AST]]:
    """Return the nodes of the files that contain a word, with the names of the files."""
    return [(name, node) for name, text in SOURCES if word in text for node in ast.walk(ast.parse(text))]


def test_a_plan_opens_with_its_strategy_and_options() -> None:
    plan = federation_plan("het_lora", {"r_min": 3})
    opened = open_plan(plan)
    assert opened.plan is plan
    assert opened.options.least_rank == 3


@pytest.mark.parametrize(
    ("name", "removed", "kept"),
    [("fed_vemoe", {"merge_above": 0.1}, {"merge_patience": 3}), ("ca_pfl", {"cut": 5.0}, {"span": 0.5})],
)
def test_a_removed_option_of_a_stored_plan_is_ignored(
    name: str, removed: dict[str, float], kept: dict[str, float]
) -> None:
    stored = federation_plan(name, removed | kept)
    assert open_plan(stored).options.model_dump(exclude_unset=True) == kept
    assert stored.strategy.options == removed | kept  # manifests have the digest of this plan


def test_strategies_are_made_in_a_single_module() -> None:
    calls = [(name, ast.unparse(node.func)) for name, node in _nodes("make(") if isinstance(node, ast.Call)]
    makes = [name for name, called in calls if called.rpartition(".")[2] == "make"]
    assert sorted(makes) == ["opening.py", "store.py"]  # the second is an insert of SQLAlchemy


def test_strategies_are_not_identified_by_class_or_name() -> None:
    assert not [name for name, text in SOURCES if re.search(r"isinstance\([^,]*strategy", text)]
    for _, node in _nodes("strategy.name"):
        assert not (isinstance(node, ast.Compare) and "strategy.name" in ast.unparse(node))


@pytest.mark.parametrize("name", strategy_names())
def test_strategies_override_the_methods_of_their_traits(name: str) -> None:
    strategy = make(name, {})
    traits, options = strategy.traits, strategy.options
    announced = {
        "combine": traits.combines,
        "strength": traits.rescales,
        "base_delta": options.base_delta,
        "step": traits.sums,
    }
    overridden = {
        method: getattr(type(strategy), method) is not getattr(Strategy, method) for method in announced
    }
    assert overridden == announced
    sends_a_part = type(options).travels is not StrategyOptions.travels
    knows_factors = sends_a_part or traits.combines or options.base_delta or options.mixed_ranks
    assert options.lora_only == (knows_factors or name == "ditto")  # whose clients hold two LoRA
    assert traits.combines or not traits.rescales
