"""Say what a strategy is to an agent, and find it by its file's name. Knows no model and no torch.

To add one, add `client_agent/strategies/<name>.py` with `Options` (a pydantic model of what the agent needs;
other options of the plan are ignored) and `Strategy` (a class made from Options).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, ValidationError

from client_agent.errors import StrategyOptionsInvalid, UnknownStrategy
from schemas.messages.importance import ImportancePlan

State = Mapping[str, NDArray[np.float32]]


class AgentStrategy(Protocol):
    """How a client uses what it is served."""

    @property
    def gated(self) -> bool:
        """Whether the served weights act as a frozen global branch beside the local one."""

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """Give the adapter from which a round's training starts; `local` is None before the first one."""


@runtime_checkable
class PartTravels(Protocol):
    """A strategy under which some tensors of an adapter never leave the client."""

    def travels(self, tensor: str) -> bool:
        """Say whether a tensor travels; the coordinator's file of the same name says the same."""

    def trains(self, tensor: str) -> bool:
        """Say whether a tensor trains; the others stay where the plan's seed put them."""


@runtime_checkable
class Folding(Protocol):
    """A strategy that adds to the base model for good what comes with the served weights."""

    restarts: ClassVar[bool]
    """Whether every round begins from a new draw of A, B = 0, with a new optimiser."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """How a client gives up ranks: those from `decay` times its rank on, but never below `least`.

    They are drawn towards zero by `strength` times their size, and go once they became smaller in a round.
    """

    least: int
    decay: float
    strength: float

    def kept(self, rank: int) -> int:
        """Say how many of its ranks a client keeps if it prunes."""
        return min(rank, max(self.least, int(self.decay * rank)))


@runtime_checkable
class RanksDiffer(Protocol):
    """A strategy under which clients choose their own rank, up to the plan's, and prune it."""

    @property
    def pruning(self) -> Pruning:
        """How ranks go."""


@runtime_checkable
class LearnsImportance(Protocol):
    """A strategy whose clients learn how much each rank of A and B matters, and send by it."""

    @property
    def importance(self) -> ImportancePlan:
        """How it is learnt, and what is sent by it."""


@cache  # every round asks, and nobody adds a file to an agent that runs
def strategy_names() -> tuple[str, ...]:
    """List the strategies of this agent: the files beside this one."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return tuple(sorted(module.name for module in found if module.name != "base"))


def load_strategy(name: str, options: Mapping[str, JsonValue] | None = None) -> AgentStrategy:
    """Make the strategy of the file `<name>.py` with the plan's options.

    Raises:
        UnknownStrategy: there is no such file.
        StrategyOptionsInvalid: an option that the agent needs has no meaning.
    """
    if name not in strategy_names():
        known = ", ".join(strategy_names())
        raise UnknownStrategy(f"this agent has no strategy {name!r}, only {known}; update the agent")
    module = importlib.import_module(f"client_agent.strategies.{name}")
    try:
        return cast(AgentStrategy, module.Strategy(module.Options.model_validate(dict(options or {}))))
    except ValidationError as error:
        facts = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise StrategyOptionsInvalid(
            f"options of strategy {name} that this agent does not understand ({facts}); update the agent"
        ) from error
