"""Fed-VEMoE in the agent: a shared expert and specialists, chosen in private by their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client_agent.strategies.base import AgentOptions, AgentStrategy, Routing, Traits
from schemas.maths.bank import counted_groups


class Options(AgentOptions):
    """How a client chooses among experts and trains them; the coordinator's file describes each."""

    top_m: int = 2
    shared: bool = True
    explore_rounds: int | None = None
    probe_examples: int = 64
    tau: float | None = None
    gamma: float = 1.0
    consistency: float = 0.1
    regret_above: float = 0.1


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served bank replaces the local one; the choice and the router stay with the client."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(routing=Routing(**self.options.model_dump()))

    def counts(self, segments: Sequence[str]) -> tuple[str, ...]:
        return counted_groups(segments)
