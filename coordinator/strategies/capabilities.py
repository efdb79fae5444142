"""The data that a strategy declares, and the values that its methods exchange with the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.maths.factors import Factors


@dataclass(frozen=True, slots=True)
class Traits:
    """The needs of a strategy in the coordinator. The defaults describe plain averaging of everything.

    Facts that the agent must know as well are those of its options (`schemas.strategies.declaration`).

    Attributes:
        needs_sketch: every update must carry a gradient sketch.
        compares_changes: `Cohort.changes` is wanted. Clients must continue from the served weights.
        combines: A and B are combined module by module, by `Strategy.combine`, instead of averaged.
        rescales: the shares in `combine` are the weights times `Strategy.strength`.
        sums: sums of updates are enough, and `Strategy.step` changes the model by them.
        per_client: what the strategy needs from each client's update, if sums are not enough: the end of a
            sentence that begins with the strategy's name.
    """

    needs_sketch: bool = False
    compares_changes: bool = False
    combines: bool = False
    rescales: bool = False
    sums: bool = False
    per_client: str = "computes with the update of each client"


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
