"""The interface of a strategy, and the clients and relevance that it works on. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.strategies.bank_rules import BankPlan
from coordinator.strategies.capabilities import BaseDelta, Caps, Source, Traits, Unfit, weighted_mean
from coordinator.totals import GroupCounts, JointValues, Outline, SegmentChange, Total
from schemas.maths.adapter import Layout, Shape, is_of_one_base_model, module_of
from schemas.maths.factors import Factors
from schemas.messages.federations import FederationPlan
from schemas.strategies.declaration import StrategyOptions

Module = str
Form = tuple[tuple[str, Shape], ...]
Kind = tuple[bool, tuple[int, ...]]
Floats = NDArray[np.float64]
Robust = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A client's sanitized gradient sketch: `vector` (dim,) float32.

    `reliability`, in (0, 1], is the share of its squared length that is not noise, as the client estimates
    it; 1 without an estimate. `epsilon` is the privacy cost of the client's sketches so far, as reported by
    the client; None without differential privacy.
    """

    vector: NDArray[np.float32]
    reliability: float = 1.0
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The input of a weighing about one client.

    Attributes:
        client: its id.
        base_model: the slug of its exact weights.
        alignment_set: the set its alignment pack belongs to; None without a pack.
        modules: its (block, role)s and (layer, role)s, each with the names and shapes of its tensors.
        age: rounds since its last accepted update, 0 = this round; None = it never had one (a newcomer).
        examples: number of examples of its last update.
        sketch: None = it sent none.
        sketch_model: the small model that made the sketch; only sketches of one model are comparable.
        is_source: whether its update may be served: recent enough, and the client not revoked.
        organisation: in its first spelling; None = unknown, the client counts as its own organisation.
    """

    client: str
    base_model: str
    alignment_set: str | None
    modules: Mapping[Module, Form]
    age: int | None
    examples: int
    sketch: Sketch | None
    sketch_model: str
    is_source: bool
    organisation: str | None = None


@dataclass(frozen=True, slots=True)
class Cohort:
    """All clients of one weighing, sorted by id, so that the result does not depend on their order.

    Attributes:
        decay: the factor by which an absent client's weight falls per round.
        changes: (N, N), the cosine of what two clients change in their rounds, in the order of the ids; NaN =
            unknown. None if the strategy does not compare changes, or there was no round yet.
    """

    clients: Sequence[ClientFacts]
    decay: float
    changes: Floats | None = field(default=None, compare=False)
    _kinds: Mapping[Module, Kind] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.clients, key=lambda facts: facts.client))
        if len({facts.client for facts in ordered}) != len(ordered):
            raise ValueError("a client is weighed twice")
        if self.changes is not None and self.changes.shape != (len(ordered),) * 2:
            raise ValueError("the changes are of other clients")
        object.__setattr__(self, "clients", ordered)
        modules = sorted({module for facts in ordered for module in facts.modules})
        object.__setattr__(self, "_kinds", {module: self._kind(module) for module in modules})

    def sources(self) -> NDArray[np.bool_]:
        """Return the clients with an update that may be served, (N,)."""
        return np.array([facts.is_source for facts in self.clients], bool)

    def groups(self, module: Module) -> NDArray[np.bool_]:
        """Return the pairs of clients for which a module's tensors mean the same, (N, N).

        These are clients of the identical base model and, for P and Q, with packs of one alignment set.
        """
        same_model = equal_pairs([facts.base_model for facts in self.clients])
        if is_of_one_base_model(module):
            return same_model
        return same_model | equal_pairs([facts.alignment_set for facts in self.clients])

    def shares(self, module: Module) -> NDArray[np.bool_]:
        """Return the pairs of one group that have a module in the same shapes, (N, N)."""
        return self.groups(module) & equal_pairs([facts.modules.get(module) for facts in self.clients])

    def shares_any(self) -> NDArray[np.bool_]:
        shared = np.zeros((len(self.clients),) * 2, bool)
        # Few kinds cover hundreds of modules: one module of each is enough.
        for module in self.kinds().values():
            shared |= self.shares(module)
        return shared

    def kinds(self) -> dict[Kind, Module]:
        """Return one module of each kind; all modules of a kind are shared by the same clients."""
        return {kind: module for module, kind in self._kinds.items()}

    def kind(self, module: Module) -> Kind:
        return self._kinds[module]

    def _kind(self, module: Module) -> Kind:
        holders = tuple(group_numbers([facts.modules.get(module) for facts in self.clients]))
        return is_of_one_base_model(module), holders


class Weights(Protocol):
    """The share of each client in the weights of every other."""

    @property
    def cohort(self) -> Cohort: ...

    def of_module(self, module: Module) -> Floats:
        """Return W for one module, (N, N), in the order of the cohort."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """The relevance of all clients to each other.

    Attributes:
        cohort: its order is that of rows and columns.
        relevance: (N, N), rows sum to 1; the row of a newcomer without any source is zero.
        similarity: (N, N), as used; NaN = not compared.
        absent: clients whose last update is served to no client. They represent the weights that they were
            served last, which are the weights of all clients of their group.
    """

    cohort: Cohort
    relevance: Floats
    similarity: Floats
    absent: frozenset[str] = frozenset()
    entropy: Floats = field(init=False)  # (N,), nats

    def __post_init__(self) -> None:
        logs = np.log(self.relevance, out=np.zeros_like(self.relevance), where=self.relevance > 0)
        object.__setattr__(self, "entropy", np.abs(np.sum(self.relevance * logs, axis=1)))

    def of_module(self, module: Module) -> Floats:
        """Return the weights for one module, (N, N): each row renormalised over the clients that share it.

        A client none of whose sources shares it keeps its own value. A newcomer, having none, gets that of
        the first absent client that shares it, or zeros. Rows of clients without this module are zero.
        """
        clients, shared = self.cohort.clients, self.cohort.shares(module)
        weights = np.where(shared, self.relevance, 0.0)
        total = weights.sum(axis=1)
        has_sources = total > 0
        weights[has_sources] /= total[has_sources, None]
        absent = np.array([facts.client in self.absent for facts in clients], bool)
        for i, facts in enumerate(clients):
            if has_sources[i] or module not in facts.modules:
                continue
            place = [i] if facts.age is not None else np.flatnonzero(shared[i] & absent)[:1]
            weights[i, place] = 1.0
        return weights


class WeightReduction(IntFlag):
    """Reasons why a client counts for less than its relevance: the guard, or too few voices."""

    LARGE = 1
    OPPOSED = 2
    COPIES = 4
    CAPPED = 8
    FEW = 16


@dataclass(frozen=True, slots=True)
class Strategy(ABC):
    """A federated method, made from its options.

    The engine calls a method only if its traits or its options announce it.
    """

    options: StrategyOptions

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """Declared requirements; a class variable where options do not decide."""

    @abstractmethod
    def weigh(self, cohort: Cohort) -> Weighing:
        """Compute the relevance of all clients to each other; equal cohorts give equal results."""

    @property
    def caps(self) -> Caps | None:
        """Limits on the influence of peers; None = relevance alone determines the served shares."""
        return None

    @property
    def robust(self) -> Robust | None:
        """A function of the values (clients, block) of all clients with weight, in place of their mean.

        It returns (block,) and decides each value by itself. None = the weighted mean.
        """
        return None

    def listens(self, weighing: Weighing) -> Floats:
        """Return the weight of each client's outputs in the mixture for every other, (N, N).

        The diagonal is 0, and rows sum to 1, or to 0 for a client without sources.
        """
        return np.zeros_like(weighing.relevance)

    def unfit(self, plan: FederationPlan) -> Unfit | None:
        """Return the field of a plan that this strategy cannot work with; None = it can."""
        return None

    def strength(self, factors: Factors) -> float:
        """Return the factor by which the weight of a source is multiplied, before normalisation."""
        return 1.0

    def combine(self, sources: Sequence[Source]) -> Factors:
        """Return the A and B of one module that clients are served; by default the weighted means."""
        return weighted_mean(sources)

    def base_delta(self, sources: Sequence[Source]) -> BaseDelta:
        """Return the factors from which clients continue, and the base model's change, for one module."""
        served = self.combine(sources)
        return BaseDelta(served, served.first(0))

    def groups(self, outline: Outline, counted: GroupCounts) -> Collection[str]:
        """Return the counted groups that the sum is to have, if they have enough members; by default all."""
        return counted.groups

    @property
    def bank(self) -> BankPlan | None:
        """The bank of experts beside the joint model; None = there is none.

        The engine then counts the users of each expert, sums the groups that have enough, and decides about
        births, pruned and merged experts by the bank's rules.
        """
        return None

    def step(self, joint: JointValues, total: Total) -> Iterator[SegmentChange]:
        """Yield the segments of the joint model that a summed round changes; by default none.

        This method is all that a strategy sees of a round whose updates are summed.
        """
        return iter(())


def modules_of(layout: Layout) -> dict[Module, Form]:
    grouped: dict[Module, list[tuple[str, Shape]]] = {}
    for tensor, shape in layout.items():
        grouped.setdefault(module_of(tensor), []).append((tensor, shape))
    return {module: tuple(sorted(tensors)) for module, tensors in grouped.items()}


def group_numbers(values: Sequence[object]) -> list[int]:
    """Number equal values alike, by first occurrence; None is -1 and equals nothing."""
    numbers: dict[object, int] = {}
    return [-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values]


def equal_pairs(values: Sequence[object]) -> NDArray[np.bool_]:
    """Return the pairs of equal values, (N, N); None equals nothing, not even itself."""
    numbers = np.array(group_numbers(values), int)
    equal: NDArray[np.bool_] = (numbers[:, None] == numbers[None, :]) & (numbers >= 0)[:, None]
    return equal
