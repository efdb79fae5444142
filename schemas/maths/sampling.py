"""The clients that a round draws (`rounds.sample`). Every client has a ticket per round, a hash of the plan's
seed, the round and its name; the lowest tickets are drawn.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil

from schemas.maths.seeded_random import words
from schemas.messages.federations import RoundsPlan


def places_of(plan: RoundsPlan, willing: int) -> int:
    """Return the number of clients that a round takes of the willing ones.

    A share is rounded up, and `min_clients` at least.
    """
    if plan.sample is None:
        return willing
    if isinstance(plan.sample, int):
        return plan.sample
    # Rounded up, and never fewer than a round needs to begin.
    return max(plan.min_clients, ceil(plan.sample * willing))


def in_order(seed: int, round_number: int, names: Collection[str]) -> list[str]:
    """Return the names of clients by their tickets in a round, the first drawn first."""
    return sorted(names, key=lambda name: (int(words(1, "sample", seed, round_number, name)[0]), name))
