"""The data that a strategy declares, and the values that its methods exchange with the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.maths.factors import Factors


@dataclass(frozen=True, slots=True)
class Traits:
    """The requirements of a strategy on the engine. The defaults describe plain averaging of everything.

    Attributes:
        needs_sketch: every update must carry a gradient sketch.
        compares_changes: `Cohort.changes` is wanted. Clients must continue from the served weights.
        gated: clients use the served P and Q as a frozen global branch beside their own.
        lora_only: adapters must be ordinary LoRA, because the strategy, or its agent, knows A and B.
        part_travels: some tensors never leave the client; `Strategy.travels` selects the ones that do.
        extra_tensors: tensors beyond the adapter's travel; `Strategy.beside` lays them out.
        combines: A and B are combined module by module, by `Strategy.combine`, instead of averaged.
        rescales: the shares in `combine` are the weights times `Strategy.strength`.
        base_delta: part of a round joins the base model, as computed by `Strategy.base_delta`.
        restarts: every round begins with a new A, drawn from its own seed, and B = 0.
        sums: sums of updates are enough, and `Strategy.step` changes the model by them.
        per_client: what the strategy needs from each client's update, if sums are not enough: the end of a
            sentence that begins with the strategy's name.
        least_rank: clients may differ in rank, from this to the plan's `adapter.rank`; None = they may not.
        only_steps: nothing but gradient steps on one adapter reads the training examples of clients, so that
            these steps can be made differentially private (`privacy.training`).
        distil: clients send the outputs of their models on this many anchor texts, and are served mixtures of
            their peers' by `Strategy.listens`; None = they do not.
    """

    needs_sketch: bool = False
    compares_changes: bool = False
    gated: bool = False
    lora_only: bool = False
    part_travels: bool = False
    extra_tensors: bool = False
    combines: bool = False
    rescales: bool = False
    base_delta: bool = False
    restarts: bool = False
    sums: bool = False
    per_client: str = "computes with the update of each client"
    least_rank: int | None = None
    only_steps: bool = False
    distil: int | None = None

    @property
    def mixed_ranks(self) -> bool:
        return self.least_rank is not None


@dataclass(frozen=True, slots=True)
class Caps:
    """The maximum influence of peers on a client (`aggregation/guard`), as shares of the served weights.

    Attributes:
        peer: the weight of one peer, and of the clients of one organisation together.
        peers: the weight of all peers together.
        strict: whether `peer` holds even if so few peers have weight that an equal share of `peers` is
            larger, and weights are multiplied by the agreement.
    """

    peer: float
    peers: float
    strict: bool


@dataclass(frozen=True, slots=True)
class Source:
    """One client's contribution to a module: its factors, their weight, and their age in rounds.

    The weights of all sources sum to 1.
    """

    factors: Factors
    weight: float
    age: int = 0


@dataclass(frozen=True, slots=True)
class BaseDelta:
    """The result of a round for one module.

    Attributes:
        served: the A and B from which clients continue; None = each starts with a new A and B = 0.
        residual: factors that every client adds to the base model, times `AdapterPlan.factor`.
    """

    served: Factors | None
    residual: Factors


class Unfit(NamedTuple):
    """A field of a plan that a strategy cannot work with, and the value that it needs."""

    field: str
    fact: str


def weighted_mean(sources: Sequence[Source]) -> Factors:
    """A = sum p_i A_i, B = sum p_i B_i: FedAvg of the factors, whose product is not the mean product."""
    a = sum(source.weight * source.factors.A.astype(np.float64) for source in sources)
    b = sum(source.weight * source.factors.B.astype(np.float64) for source in sources)
    return Factors(np.asarray(a, np.float32), np.asarray(b, np.float32))
