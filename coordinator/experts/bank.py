"""The state of a bank of experts, the rules of its changes, and what a round says about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from coordinator.experts.equivalence import Cost
from coordinator.strategies.bank_rules import Rules

Status = Literal["active", "archived", "merged"]
Change = Literal["born", "pruned", "merged"]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Expert:
    """An expert of the bank; its ordinal is never used again.

    Attributes:
        grace_until: the last round in which it is neither pruned nor merged.
        prior: its share pi of the prior; 0 unless it is active.
        utilisation: the moving average of the share of members that used it; None before its first round.
        strikes: how many rounds its utilisation has been too low.
        ended: the round in which it was archived or merged.
    """

    expert: int
    born: int
    grace_until: int
    prior: float
    status: Status = "active"
    utilisation: float | None = None
    strikes: int = 0
    parent: int | None = None
    merged_into: int | None = None
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Bank:
    """All specialists that ever were, in order, and what is remembered between rounds.

    Attributes:
        rejected: the number of rounds in a row in which enough members rejected all experts.
        alike: the number of rounds in a row in which two experts were equivalent, by their ordinals in order.
        last_birth, last_prune: the rounds of the last birth and of the last archived expert.
    """

    experts: tuple[Expert, ...]
    rejected: int = 0
    alike: Mapping[Pair, int] = field(default_factory=dict)
    last_birth: int | None = None
    last_prune: int | None = None

    @property
    def active(self) -> tuple[Expert, ...]:
        return tuple(expert for expert in self.experts if expert.status == "active")

    def __getitem__(self, ordinal: int) -> Expert:
        return next(expert for expert in self.experts if expert.expert == ordinal)


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """The outcome of a round's counts: `members` were counted, `users` used each expert, `rejects` none."""

    members: int
    users: Mapping[int, int]
    rejects: int


@dataclass(frozen=True, slots=True)
class RoundSums:
    """A round's counts, and what its sum added.

    Attributes:
        responsibilities: sum r_ik of the specialists that were summed, and of no other.
        has_newborn: whether the change of the members who rejected all experts was summed.
        costs: what another expert in its place costs the members of each that was summed.
        step: the distance of two encoded values of 1.
    """

    counts: RoundCounts
    responsibilities: Mapping[int, float]
    has_newborn: bool = False
    costs: Mapping[Pair, Cost] = field(default_factory=dict)
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the bank, with its reason as a sentence and the numbers that it rests on.

    `peer` is the shared expert of a newborn, and the expert that takes the place of a merged one.
    """

    change: Change
    round: int
    expert: int
    reason: str
    numbers: Mapping[str, float]
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The bank after a round, and its changes in order: a birth, a pruned expert, two merged ones."""

    bank: Bank
    events: tuple[Event, ...]


def new_bank(count: int, rules: Rules, explore_until: int) -> Bank:
    """Return a bank of `count` equal specialists; the grace of all begins after the exploring rounds.

    Raises:
        ValueError: there are more than `k_max`, or none.
    """
    if not 1 <= count <= rules.k_max:
        raise ValueError(f"a bank begins with 1 to {rules.k_max} specialists, not {count}")
    grace_until = explore_until + rules.grace
    return Bank(tuple(Expert(n, 0, grace_until, 1 / count) for n in range(1, count + 1)))


def begun_anew(bank: Bank, rules: Rules, explore_until: int) -> Bank:
    """Return a bank whose values are void: its active experts are equal again, and nothing is remembered."""
    # Their values are gone, and with them all that was learnt of them.
    share, grace_until = 1 / max(1, len(bank.active)), explore_until + rules.grace
    experts = (
        replace(expert, prior=share, grace_until=grace_until, utilisation=None, strikes=0)
        if expert.status == "active"
        else expert
        for expert in bank.experts
    )
    return Bank(tuple(experts), last_birth=bank.last_birth, last_prune=bank.last_prune)
