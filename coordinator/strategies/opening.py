"""Find strategies by name, and open the one of a plan. Adding a strategy changes no other file.

A strategy is `coordinator/strategies/<name>.py`, or the module `coordinator` of an installed package
(`schemas/strategy_packages.py`), with `Options`, a pydantic model that forbids unknown members, and
`Strategy`, made from Options. Its agent side is the file of the same name in `client_agent/strategies`.
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
from schemas.strategy_packages import strategy_packages


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


@cache  # requests list them, and neither files nor packages change under a running service
def names() -> tuple[str, ...]:
    """Return the names of all strategies: the files beside this one, and those of installed packages."""
    return tuple(sorted({*_own_files(), *strategy_packages()}))


@cache
def load(name: str) -> StrategyFile:
    """Load the file of a strategy; a file beside this one is preferred to a package of the same name.

    Raises:
        UnknownStrategy: there is none, or its package has no module `coordinator` that can be imported.
    """
    if name in _own_files():
        return cast("StrategyFile", importlib.import_module(f"{__package__}.{name}"))
    package = strategy_packages().get(name)
    if package is None:
        raise UnknownStrategy(f"there is no strategy {name!r}; there are {', '.join(names())}")
    try:
        return cast("StrategyFile", importlib.import_module(f"{package}.coordinator"))
    except ImportError as error:
        raise UnknownStrategy(
            f"strategy {name!r}: {package}.coordinator cannot be imported ({error}); repair the package"
        ) from error


def make(name: str, options: Mapping[str, JsonValue]) -> Strategy:
    """Build a strategy from options as a plan has them.

    Raises:
        UnknownStrategy: there is none of this name.
        pydantic.ValidationError: it has no such options.
    """
    file = load(name)
    return file.Strategy(file.Options.model_validate(dict(options)))


@cache
def _own_files() -> tuple[str, ...]:
    """List the files beside this one that define `Options` and `Strategy`."""
    files = sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = {name: vars(importlib.import_module(f"{__package__}.{name}")) for name in files}
    return tuple(name for name, members in modules.items() if {"Options", "Strategy"} <= members.keys())
