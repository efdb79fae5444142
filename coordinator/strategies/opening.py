"""Find strategies by file name, and open the one of a plan. Adding a strategy changes no other file.

A strategy is `coordinator/strategies/<name>.py` with `Options`, a pydantic model that forbids unknown
members, and `Strategy`, made from Options. Its agent side is the file of the same name in
`client_agent/strategies`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from pydantic import BaseModel, JsonValue

from coordinator.strategies.base import Strategy
from coordinator.strategies.capabilities import Traits
from schemas.messages.federations import FederationPlan


class UnknownStrategy(Exception):
    """There is no strategy of this name; the message lists those there are."""


class StrategyFile(Protocol):
    """What the file of a strategy defines."""

    Options: type[BaseModel]

    def Strategy(self, options: BaseModel) -> Strategy: ...


@dataclass(frozen=True, slots=True)
class OpenedPlan:
    """A federation's plan with its strategy, opened once per request, join or round and passed down."""

    plan: FederationPlan
    strategy: Strategy

    @property
    def traits(self) -> Traits:
        return self.strategy.traits


def open_plan(plan: FederationPlan) -> OpenedPlan:
    """Open a plan whose strategy and options were validated when its federation was created.

    Raises:
        UnknownStrategy: the strategy is not installed.
        pydantic.ValidationError: the strategy has no such options.
    """
    return OpenedPlan(plan, make(plan.strategy.name, plan.strategy.options))


@cache  # requests list them, and the files of a running service do not change
def names() -> tuple[str, ...]:
    """Return the names of all strategies: the files beside this one that define `Options` and `Strategy`."""
    files = sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return tuple(name for name in files if {"Options", "Strategy"} <= vars(_module(name)).keys())


@cache
def load(name: str) -> StrategyFile:
    """Load the file of a strategy.

    Raises:
        UnknownStrategy: there is none.
    """
    if name not in names():
        raise UnknownStrategy(f"there is no strategy {name!r}; there are {', '.join(names())}")
    return cast("StrategyFile", _module(name))


def make(name: str, options: Mapping[str, JsonValue]) -> Strategy:
    """Build a strategy from options as a plan has them.

    Raises:
        UnknownStrategy: there is none of this name.
        pydantic.ValidationError: it has no such options.
    """
    file = load(name)
    return file.Strategy(file.Options.model_validate(dict(options)))


def _module(name: str) -> object:
    return importlib.import_module(f"coordinator.strategies.{name}")
