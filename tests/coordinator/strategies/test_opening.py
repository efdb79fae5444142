"""A plan is opened once, by one function; a file is a strategy by what it defines."""

from __future__ import annotations

import ast
from pathlib import Path

import coordinator
from coordinator.strategies.opening import names, open_plan
from schemas.messages.federations import FederationPlan

FILES = sorted(Path(coordinator.__file__).parent.rglob("*.py"))


def _calls(path: Path) -> list[tuple[str, ast.Call]]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


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
    makes = [path.name for path in FILES for name, _ in _calls(path) if name.rpartition(".")[2] == "make"]
    makes.remove("store.py")  # an insert of SQLAlchemy, in coordinator/weights
    assert makes == ["opening.py"]


def test_nobody_asks_for_the_class_or_compares_the_name_of_a_strategy() -> None:
    asked = [
        str(path)
        for path in FILES
        for name, call in _calls(path)
        if name == "isinstance" and "strategy" in ast.unparse(call.args[0])
    ]
    compared = [
        str(path)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare) and "strategy.name" in ast.unparse(node)
    ]
    assert not asked
    assert not compared
