"""The options of Fed-VEMoE: the number of experts, and when a bank of them changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from schemas.maths.bank import counted_groups, most_chosen
from schemas.messages.base import field_error
from schemas.strategies.declaration import StrategyOptions

_Count = Annotated[int, Field(ge=1, le=64)]
_Rounds = Annotated[int, Field(ge=0, le=1000)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]


class FedVemoeOptions(StrategyOptions):
    """The number of experts, the choice of clients among them, and the changes of the bank."""

    adds_losses: ClassVar[bool] = False
    removed: ClassVar[frozenset[str]] = frozenset({"merge_above"})

    experts: _Count = 6
    """The initial number of specialists, about twice the number of expected tasks."""
    most_experts: _Count = 12
    """The largest number of active specialists."""
    top_m: Annotated[int, Field(ge=2, le=8)] = 2
    """The number of experts that act in a client, the shared one included; above 2, a router weighs them."""
    shared: bool = True
    """Whether an expert that all clients train acts beside the specialists."""
    explore_rounds: Annotated[int, Field(ge=0, le=1000)] | None = None
    """The number of first rounds in which clients draw specialists at random; null = half, 10 at most."""
    probe_examples: Annotated[int, Field(ge=8, le=4096)] = 64
    """The approximate number of training examples that a client holds out to choose experts."""
    tau: _Positive | None = None
    """The temperature of the responsibilities; null = the spread of a client's losses."""
    gamma: _Positive = 1.0
    """The temperature of the token router."""
    consistency: Annotated[float, Field(ge=0)] = 0.1
    """The weight of the distance between token weights and responsibilities; 0 = none."""
    regret_above: _Share = 0.1
    """A client rejects all experts if its personal model is better by more than this share of the shared
    expert's loss; 1 = never.
    """
    server_rate: Annotated[float, Field(gt=0, le=2)] = 1.0
    """The share of the mean change by which an expert moves in a round."""
    birth_share: _Share = 0.1
    """The share of members that must reject all experts before one is born, at least `k_min` of them."""
    birth_patience: _Count = 2
    """The number of consecutive rounds in which that share must reject all experts."""
    birth_cooldown: _Rounds = 3
    """The number of rounds after a birth without another birth."""
    grace: _Rounds = 3
    """The number of rounds in which a new expert is neither pruned nor merged; the initial experts have them
    after the exploring rounds.
    """
    prune_below: _Share = 0.02
    """The average share of members below which an expert gets a strike in a round."""
    prune_until: _Share = 0.05
    """The average share of members above which the strikes of an expert are cleared."""
    prune_patience: _Count = 3
    """The number of strikes after which an expert is archived."""
    prune_cooldown: _Rounds = 2
    """The number of rounds after an archived expert in which no other expert is archived."""
    merge_patience: _Count = 2
    """The number of consecutive rounds in which two experts must be equivalent before they are merged."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.most_experts < self.experts:
            raise field_error(f"must be at least experts = {self.experts}", "most_experts")
        if self.top_m - 1 > self.experts:
            raise field_error(f"needs {self.top_m - 1} specialists; experts is {self.experts}", "top_m")
        if self.prune_until < self.prune_below:
            raise field_error(f"must be at least prune_below = {self.prune_below:g}", "prune_until")
        return self

    @property
    def specialists(self) -> int:
        """The number of specialists that act in a client."""
        return self.top_m - 1

    @property
    def choices(self) -> int:
        return most_chosen(self.top_m)

    def counts(self, segments: Sequence[str]) -> tuple[str, ...]:
        return counted_groups(segments)
