"""The rules by which a bank of experts changes, and its start, as a strategy declares them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_WEIGHT: Final = 1 / 64
"""Below this sum of weights a total is mostly the noise of its encoding, or a member spoilt it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a bank changes; rounds are counted as rounds that were summed.

    Attributes:
        k_min: the fewest members of an expert that is summed.
        k_max: how many specialists are active at most.
        birth_share: the share of members that must reject all experts, at least `k_min` of them.
        birth_patience: the number of consecutive rounds in which that share must reject all experts.
        birth_cooldown: the number of rounds after a birth without another birth.
        grace: the number of rounds in which a new expert is neither pruned nor merged.
        utilisation_decay: the weight of the past in the moving average of an expert's share of members.
        prune_below: an average below this adds a strike, and one above `prune_until` clears them.
        prune_patience: the number of strikes after which an expert is archived.
        prune_cooldown: the number of rounds after an archived expert in which no other expert is archived.
        merge_patience: the number of consecutive rounds in which two experts must be equivalent before they
            are merged.
    """

    k_min: int = 3
    k_max: int = 12
    birth_share: float = 0.1
    birth_patience: int = 2
    birth_cooldown: int = 3
    grace: int = 3
    utilisation_decay: float = 0.5
    prune_below: float = 0.02
    prune_until: float = 0.05
    prune_patience: int = 3
    prune_cooldown: int = 2
    merge_patience: int = 2


@dataclass(frozen=True, slots=True)
class BankPlan:
    """The bank of a strategy with experts.

    Attributes:
        experts: how many specialists it begins with.
        explore_rounds: in how many rounds clients draw specialists at random; None = half of all, 10 at most.
        rules: when it changes; the plan's `privacy.secure_sum.k_min` replaces theirs.
    """

    experts: int
    explore_rounds: int | None
    rules: Rules
