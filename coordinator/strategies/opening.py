"""Find strategies by name, and open the one of a plan. Adding a strategy changes no other file.

A strategy is `coordinator/strategies/<name>.py`, or the module `coordinator` of an installed package
(`schemas/strategy_packages.py`), with `Options`, a pydantic model that forbids unknown members, and
`Strategy`, made from Options. Its agent side is the file of the same name in `client_agent/strategies`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from pydantic import BaseModel, JsonValue, ValidationError

from coordinator.errors import StrategyUnavailable
from coordinator.strategies.base import Strategy
from coordinator.strategies.capabilities import Traits
from coordinator.totals import SumStrategy
from schemas.messages.federations import FederationPlan
from schemas.strategy_packages import StrategyPackageBroken, load_strategy_package, strategy_packages


class UnknownStrategy(Exception):
    """There is no usable strategy of this name; the message says why."""


class NotSummed(Exception):
    """The strategy needs each client's update; the message says why, and which strategies do not."""


class StrategyFile(Protocol):
    """The definitions in the file of a strategy."""

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
        StrategyUnavailable: since then its package was uninstalled or broken, or has other options.
    """
    try:
        return OpenedPlan(plan, make(plan.strategy.name, plan.strategy.options))
    except (UnknownStrategy, ValidationError) as error:
        raise StrategyUnavailable(strategy=plan.strategy.name) from error


@cache  # requests list them, and neither files nor packages change under a running service
def names() -> tuple[str, ...]:
    """Return the names of all strategies: the files beside this one, and those of installed packages."""
    return tuple(sorted({*_own_files(), *strategy_packages()}))


@cache
def sentence(name: str) -> str:
    """Return the first paragraph of the docstring of a strategy's file, in one line; "" without one.

    Raises:
        UnknownStrategy: there is no usable strategy of this name.
    """
    module = importlib.import_module(load(name).Options.__module__)
    return " ".join(inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0].split())


@cache
def load(name: str) -> StrategyFile:
    """Load the file of a strategy; a file beside this one is preferred to a package of the same name.

    Raises:
        UnknownStrategy: there is none, or its package cannot be used.
    """
    if name in _own_files():
        return cast("StrategyFile", importlib.import_module(f"{__package__}.{name}"))
    if name not in strategy_packages():
        raise UnknownStrategy(f"there is no strategy {name!r}; there are {', '.join(names())}")
    try:
        return cast("StrategyFile", load_strategy_package(name, "coordinator"))
    except StrategyPackageBroken as error:
        raise UnknownStrategy(str(error)) from error


def make(name: str, options: Mapping[str, JsonValue]) -> Strategy:
    """Build a strategy from options as a plan has them.

    Raises:
        UnknownStrategy: there is none of this name.
        pydantic.ValidationError: it has no such options.
    """
    file = load(name)
    return file.Strategy(file.Options.model_validate(dict(options)))


def unknown_option(name: str, option: str) -> str:
    """Return why a strategy has not this option: the options that it has, and the strategies that have it."""
    has = ", ".join(load(name).Options.model_fields) or "none"
    owners = [strategy for strategy in usable() if option in load(strategy).Options.model_fields]
    elsewhere = f"; {', '.join(owners)} have it" if owners else ""
    return f"{name} has no such option, only {has}{elsewhere}"


def require_summed(opened: OpenedPlan) -> SumStrategy:
    """Return the strategy of a plan as one that needs sums only.

    Raises:
        NotSummed: it needs each client's update.
    """
    if opened.traits.sums:
        return opened.strategy
    raise NotSummed(
        f"{opened.plan.strategy.name} {opened.traits.per_client}; with privacy.secure_sum choose "
        f"{', '.join(_summed_names())}"
    )


def _summed_names() -> list[str]:
    """List the strategies that need sums only, whatever their options."""
    traits = {name: getattr(load(name).Strategy, "traits", None) for name in usable()}
    return [name for name, of in traits.items() if isinstance(of, Traits) and of.sums]


def usable() -> list[str]:
    """Return the names of the strategies that can be loaded."""
    usable = []
    for name in names():
        try:
            load(name)
        except UnknownStrategy:
            continue
        usable.append(name)
    return usable


@cache
def _own_files() -> tuple[str, ...]:
    """List the files beside this one that define `Options` and `Strategy`."""
    files = sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = {name: vars(importlib.import_module(f"{__package__}.{name}")) for name in files}
    return tuple(name for name, members in modules.items() if {"Options", "Strategy"} <= members.keys())
