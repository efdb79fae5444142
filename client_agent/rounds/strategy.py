"""The interface of a strategy in the agent, and its loading by name. Needs no torch.

To add one, add `client_agent/strategies/<name>.py` with `Options` (`AgentOptions`) and `Strategy` (an
`AgentStrategy` made from them), or a package of one's own (docs/how-to/write-a-strategy.md).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from client_agent.errors import StrategyOptionsInvalid, UnknownStrategy
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from schemas.maths.factors import State
from schemas.messages.faults import complaints
from schemas.strategy_packages import StrategyPackageBroken, load_strategy_package, strategy_packages

_PACKAGE = "client_agent.strategies"
_FOLDER = Path(__file__).parent.parent / "strategies"


class AgentOptions(BaseModel):
    """Options of a plan that the agent needs; the coordinator's are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AgentStrategy:
    """A federated method in the agent. The defaults continue from the served weights, whole.

    Attributes:
        restarts: every round starts with a new A, B = 0 and a new optimiser.
    """

    __slots__ = ()

    restarts: ClassVar[bool] = False

    @property
    def gated(self) -> bool:
        """Whether the served weights are a frozen global branch beside the local adapter."""
        return self.served.gated

    @property
    def parts(self) -> tuple[Part, ...]:
        """The features of the strategy, in the order in which a round calls them."""
        return ()

    @property
    def served(self) -> ServedForm:
        """The form in which the weights of the strategy are read."""
        return ServedForm()

    def travels(self, tensor: str) -> bool:
        """Whether a tensor is sent; the coordinator's strategy of the same name must agree."""
        return True

    def trains(self, tensor: str) -> bool:
        """Whether a tensor is trained; the others keep their values from the plan's seed."""
        return True

    def counts(self, segments: Sequence[str]) -> tuple[str, ...]:
        """Return the groups whose members are counted before a sum; the coordinator's file agrees.

        `segments` are those of the adapter's tensors. A client belongs to the group of an expert, `x3`, if
        its training changed tensors of the expert.
        """
        return ()

    @property
    def choices(self) -> int | None:
        """The most groups but `reject` to which a client belongs in a round; None = any number."""
        return None

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """Return the adapter L at the start of a round: L <- G. `local` is None before the first round."""
        return served


@cache  # neither files nor packages change while an agent runs
def strategy_names() -> tuple[str, ...]:
    """List the strategies of this agent: its own files, and those of installed packages."""
    return tuple(sorted({*_own_files(), *strategy_packages()}))


def load_strategy(name: str, options: Mapping[str, JsonValue] | None = None) -> AgentStrategy:
    """Load the strategy of a name with a plan's options.

    Raises:
        UnknownStrategy: there is no file and no installed package of this name, or it cannot be imported.
        StrategyOptionsInvalid: an option has a value that this agent does not support.
    """
    if name not in strategy_names():
        names = ", ".join(strategy_names())
        raise UnknownStrategy(
            f"this agent has no strategy {name!r}, only {names}; update the agent, or install the package of "
            "the strategy"
        )
    module = _module(name)
    try:
        return cast(AgentStrategy, module.Strategy(module.Options.model_validate(dict(options or {}))))
    except ValidationError as error:
        facts = complaints(error, module.Options, "option")
        raise StrategyOptionsInvalid(
            f"this agent does not support these options of strategy {name}: {facts}; update the agent"
        ) from error


@cache
def _own_files() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules([str(_FOLDER)]))


def _module(name: str) -> Any:
    # Own files first: a package cannot replace a strategy of the agent.
    if name in _own_files():
        return importlib.import_module(f"{_PACKAGE}.{name}")
    try:
        return load_strategy_package(name, "agent")
    except StrategyPackageBroken as error:
        raise UnknownStrategy(str(error)) from error
