"""Load strategies by name, and open the one of a plan.

The coordinator's half of a strategy is the class `Strategy` in `coordinator/strategies/<name>.py`, or in the
module `coordinator` of an installed package. It is made from the options that `schemas.strategies` declares.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import JsonValue, ValidationError

from coordinator.errors import StrategyUnavailable
from coordinator.strategies.base import Strategy
from coordinator.strategies.capabilities import Traits
from coordinator.totals import SumStrategy
from schemas.messages.federations import FederationPlan
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.registry import (
    StrategyPackageBroken,
    load_half,
    strategy_names,
    strategy_options,
)


class UnknownStrategy(Exception):
    """There is no usable strategy of this name; the message says why."""


class NotSummed(Exception):
    """The strategy needs each client's update; the message says why, and which strategies do not."""


@dataclass(frozen=True, slots=True)
class LoadedStrategy:
    """The options of a strategy, and its class in the coordinator."""

    options: type[StrategyOptions]
    strategy: type[Strategy]


@dataclass(frozen=True, slots=True)
class OpenedPlan:
    """A federation's plan with its strategy, opened once per request, join or round and passed down."""

    plan: FederationPlan
    strategy: Strategy

    @property
    def traits(self) -> Traits:
        return self.strategy.traits

    @property
    def options(self) -> StrategyOptions:
        """The options of the strategy, with the facts on which both sides agree."""
        return self.strategy.options


def open_plan(plan: FederationPlan) -> OpenedPlan:
    """Open a plan whose strategy and options were validated when its federation was created.

    Raises:
        StrategyUnavailable: since then its package was uninstalled or broken, or has other options.
    """
    try:
        return OpenedPlan(plan, make(plan.strategy.name, plan.strategy.options))
    except (UnknownStrategy, ValidationError) as error:
        raise StrategyUnavailable(strategy=plan.strategy.name) from error


@cache
def sentence(name: str) -> str:
    """Return the first paragraph of the docstring of a strategy's file, in one line; "" without one.

    Raises:
        UnknownStrategy: there is no usable strategy of this name.
    """
    module = importlib.import_module(load(name).strategy.__module__)
    return " ".join(inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0].split())


@cache  # neither files nor packages change under a running service
def load(name: str) -> LoadedStrategy:
    """Load a strategy by its name.

    Raises:
        UnknownStrategy: there is none, or its package cannot be used.
    """
    if name not in strategy_names():
        raise UnknownStrategy(f"there is no strategy {name!r}; there are {', '.join(strategy_names())}")
    try:
        half = load_half(name, "coordinator", package="coordinator.strategies")
        return LoadedStrategy(strategy_options(name), half.Strategy)
    except StrategyPackageBroken as error:
        raise UnknownStrategy(str(error)) from error


def make(name: str, options: Mapping[str, JsonValue]) -> Strategy:
    """Build a strategy from options as a plan has them.

    Raises:
        UnknownStrategy: there is none of this name.
        pydantic.ValidationError: it has no such options.
    """
    loaded = load(name)
    return loaded.strategy(loaded.options.model_validate(dict(options)))


def unknown_option(name: str, option: str) -> str:
    """Return the error text for an option that a strategy lacks, with the strategies that have the option."""
    own_options = ", ".join(load(name).options.model_fields) or "none"
    owners = [strategy for strategy in usable() if option in load(strategy).options.model_fields]
    hint = f"; {', '.join(owners)} have it" if owners else ""
    return f"{name} has no such option, only {own_options}{hint}"


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
    traits = {name: getattr(load(name).strategy, "traits", None) for name in usable()}
    return [name for name, declared in traits.items() if isinstance(declared, Traits) and declared.sums]


def usable() -> list[str]:
    """Return the names of the strategies that can be loaded."""
    usable = []
    for name in strategy_names():
        try:
            load(name)
        except UnknownStrategy:
            continue
        usable.append(name)
    return usable
