"""Fed-VEMoE in the agent: a shared expert and specialists, chosen in private by their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client_agent.strategies.base import AgentStrategy, Routing, Traits
from schemas.maths.bank import counted_groups, most_chosen


class Options(Routing):
    """How a client chooses among experts and trains them."""


@dataclass(frozen=True, slots=True)
class Strategy(AgentStrategy):
    """The served bank replaces the local one; the choice and the router stay with the client."""

    options: Options

    @property
    def traits(self) -> Traits:
        return Traits(routing=self.options)

    def counts(self, segments: Sequence[str]) -> tuple[str, ...]:
        return counted_groups(segments)

    @property
    def choices(self) -> int:
        return most_chosen(self.options.top_m)
