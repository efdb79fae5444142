"""A bank of experts drawn from a seed: its size, and the births, prunings and merges."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

BANKED = 0.5
"""The share of the schedules with counts whose strategy has a bank of experts."""

_MOST_EXPERTS = 4
_AT_ONCE = {"explore_rounds": 0, "grace": 0, "birth_cooldown": 0, "prune_cooldown": 0}
"""Few rounds are played, so that a bank changes in its first ones."""


@dataclass(frozen=True)
class BankDrawn:
    """The bank of a schedule, and when its experts change."""

    experts: int
    birth_patience: int
    prune_patience: int
    merge_patience: int

    def strategy(self) -> dict[str, Any]:
        """Write the strategy as a plan names it."""
        return {
            "name": "fed_vemoe",
            "options": {**_AT_ONCE, "most_experts": _MOST_EXPERTS, **asdict(self)},
        }


def bank_of(seed: int) -> BankDrawn | None:
    """Draw the bank of a schedule with counts; None = it counts without one."""
    dice = random.Random(f"bank {seed}")
    if dice.random() >= BANKED:
        return None
    return BankDrawn(
        experts=dice.choice([2, 2, 3]),
        birth_patience=dice.choice([1, 1, 2]),
        prune_patience=dice.choice([1, 1, 64]),
        merge_patience=dice.choice([1, 64, 64]),
    )
