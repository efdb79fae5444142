"""The interface of a strategy in the agent, and its loading by name. Needs no torch.

The agent's half of a strategy is the class `Strategy` in `client_agent/strategies/<name>.py`, or in the
module `agent` of an installed package (docs/how-to/write-a-strategy.md). It is made from the options that
`schemas.strategies` declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue, ValidationError

from client_agent.errors import StrategyOptionsInvalid, UnknownStrategy
from client_agent.rounds.part import Part
from client_agent.rounds.served_weights import ServedForm
from schemas.maths.factors import State
from schemas.messages.faults import complaints
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.registry import StrategyPackageBroken, load_half, strategy_names, strategy_options


@dataclass(frozen=True, slots=True)
class AgentStrategy:
    """A federated method in the agent. The defaults continue from the served weights, whole.

    Attributes:
        options: those of the plan, with the facts on which both sides agree.
    """

    options: StrategyOptions

    @property
    def parts(self) -> tuple[Part, ...]:
        """The features of the strategy, in the order in which a round calls them."""
        return ()

    @property
    def served(self) -> ServedForm:
        """The form in which the weights of the strategy are read."""
        return ServedForm(mixed_ranks=self.options.mixed_ranks)

    @property
    def declines(self) -> bool:
        """Whether a client trains on from its own state where the served one is worse on its examples."""
        return False

    def trains(self, tensor: str) -> bool:
        """Whether a tensor is trained; the others keep their values from the plan's seed."""
        return True

    def start(self, local: State | None, served: State, *, newcomer: bool) -> State:
        """Return the adapter L at the start of a round: L <- G. `local` is None before the first round."""
        return served


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
    try:
        half, declared = load_half(name, "agent", package="client_agent.strategies"), strategy_options(name)
    except StrategyPackageBroken as error:
        raise UnknownStrategy(str(error)) from error
    # A newer coordinator resolves a plan with options that this version lacks: they are ignored.
    fields = declared.model_fields
    known_options = {option: value for option, value in (options or {}).items() if option in fields}
    try:
        return cast(AgentStrategy, half.Strategy(declared.model_validate(known_options)))
    except ValidationError as error:
        facts = complaints(error, declared, "option")
        raise StrategyOptionsInvalid(
            f"this agent does not support these options of strategy {name}: {facts}; update the agent"
        ) from error
