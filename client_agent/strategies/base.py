"""The interface of a strategy in the agent, and its loading by name. Needs no torch.

To add one, add `client_agent/strategies/<name>.py` with `Options` (`AgentOptions`) and `Strategy` (an
`AgentStrategy` made from them).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from client_agent.errors import StrategyOptionsInvalid, UnknownStrategy
from schemas.messages.distil import DistilPlan
from schemas.messages.faults import complaints
from schemas.messages.importance import ImportancePlan
from schemas.strategy_packages import StrategyPackageBroken, load_strategy_package, strategy_packages

State = Mapping[str, NDArray[np.float32]]


class AgentOptions(BaseModel):
    """Options of a plan that the agent needs; the coordinator's are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True, slots=True)
class Pruning:
    """How a client reduces its rank: all ranks but the first `decay` times rank, or `least`, are penalised.

    The penalty is `strength` times their size; they are removed after a round in which they shrank.
    """

    least: int
    decay: float
    strength: float

    def target(self, rank: int) -> int:
        """Return the rank of a client of this rank after pruning."""
        return min(rank, max(self.least, int(self.decay * rank)))


class Routing(AgentOptions):
    """How a client chooses among the experts of a bank, and trains them.

    Attributes:
        top_m: how many experts act, the shared one included; 2 = one specialist at weight 1, without a
            router, more = specialists weighed by token.
        explore_rounds: how many rounds specialists are drawn at random; None = half of all, 10 at most.
        probe_examples: about how many training examples are held out to choose by.
        tau: the temperature of the responsibilities; None = the spread of the losses.
        gamma: the temperature of the token router.
        consistency: weight of the distance between the mean weights of a step's tokens and the
            responsibilities; 0 = none.
        regret_above: the regret above which a client rejects all experts.
        shared: whether the shared expert trains; otherwise it stays zero, and one specialist is the model.
    """

    top_m: int = 2
    explore_rounds: int | None = None
    probe_examples: int = 64
    tau: float | None = None
    gamma: float = 1.0
    consistency: float = 0.1
    regret_above: float = 0.1
    shared: bool = True

    @property
    def specialists(self) -> int:
        return self.top_m - 1


@dataclass(frozen=True, slots=True)
class Traits:
    """A strategy's needs from the agent. The defaults describe an adapter that is trained and sent whole.

    Attributes:
        gated: the served weights are a frozen global branch beside the local one.
        base_delta: served weights carry an increment of the base model.
        restarts: every round starts with a new A, B = 0 and a new optimiser.
        part_travels: `AgentStrategy.travels` and `.trains` select the tensors that are sent and trained.
        least_rank: clients choose their rank, from this to the plan's; None = all have the plan's rank.
        pruning: clients prune their rank as they train; None = they keep it.
        importance: clients learn the importance of each rank and send by it; None = they do not.
        pull: clients train a second adapter beside the common adapter, pulled towards it by this weight; None
            = they do not.
        proximal: clients' own steps are pulled to the weights they are served, by this weight; None = they
            are not.
        routing: clients choose among a bank of experts by it, and train those; None = there is no bank.
        distil: clients learn from the outputs of their peers' models by it; None = they do not.
    """

    gated: bool = False
    base_delta: bool = False
    restarts: bool = False
    part_travels: bool = False
    least_rank: int | None = None
    pruning: Pruning | None = None
    importance: ImportancePlan | None = None
    pull: float | None = None
    proximal: float | None = None
    routing: Routing | None = None
    distil: DistilPlan | None = None

    @property
    def mixed_ranks(self) -> bool:
        """Whether clients of one base model may have adapters of different ranks."""
        return self.least_rank is not None


class AgentStrategy:
    """A federated method in the agent. The defaults continue from the served weights, whole."""

    __slots__ = ()

    @property
    def traits(self) -> Traits:
        return Traits()

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
    """List the strategies of this agent: the files beside this one, and those of installed packages."""
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
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return tuple(module.name for module in modules if module.name != "base")


def _module(name: str) -> Any:
    if name in _own_files():
        return importlib.import_module(f"{__package__}.{name}")
    try:
        return load_strategy_package(name, "agent")
    except StrategyPackageBroken as error:
        raise UnknownStrategy(str(error)) from error
