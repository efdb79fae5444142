"""The specialists that a client trains in a round, and their steps: drawn at first, then the best. Pure.

All experts begin as equal functions, so a client has the same loss for each. If clients chose greedily, all
would train one expert. So each client draws at random, from its own seed, until experts differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from schemas.maths.seeded_random import words

_MANTISSA = 2.0**-53


@dataclass(frozen=True, slots=True)
class Turn:
    """Local steps in which the shared expert and these specialists train."""

    specialists: tuple[int, ...]
    steps: int


def temperature(round_number: int, explore_rounds: int) -> float:
    """Return the temperature of a round's draws: 1 in round 1, falling linearly to 0 after exploring."""
    return max(0.0, 1 - (round_number - 1) / explore_rounds) if explore_rounds else 0.0


def drawn(
    responsibilities: Mapping[int, float], count: int, temperature: float, *, secret: str, round_number: int
) -> tuple[int, ...]:
    """Draw `count` specialists without replacement: the largest ln r_k + T g_k, g_k of a Gumbel distribution.

    At T = 1 this samples in proportion to r (Gumbel-top-k, Kool et al. 2019); at T = 0 it returns the most
    responsible specialists.

    Args:
        secret: the client's own seed, from which the drawn experts follow; keep it private.
    """
    # Gumbel noise on log weights draws in proportion to the weights, and all `count` in one sort.
    scores = {
        expert: (log(r) if r > 0 else -inf)
        + (temperature * _gumbel(secret, "round", round_number, expert) if temperature else 0.0)
        for expert, r in responsibilities.items()
    }
    # Without noise, each client orders equal scores in its own fixed order: otherwise all clients would
    # choose the same expert.
    ties = {expert: _gumbel(secret, "ties", expert) for expert in scores}
    ordered = sorted(scores, key=lambda expert: (scores[expert], ties[expert]), reverse=True)
    return tuple(ordered[:count])


def turns(specialists: Sequence[int], steps: int, *, exploring: bool) -> list[Turn]:
    """Divide a round's steps: drawn specialists train one after another, each beside the shared expert.

    After exploration they train together. If a round has one step, the first drawn specialist takes it.
    """
    if not exploring or len(specialists) < 2:
        return [Turn(tuple(specialists), steps)]
    least, remainder = divmod(steps, len(specialists))
    shares = [least + (number < remainder) for number in range(len(specialists))]
    # With fewer steps than specialists, the last ones get none.
    return [Turn((expert,), share) for expert, share in zip(specialists, shares, strict=True) if share]


def _gumbel(*key: str | int) -> float:
    # 53 bits fill a float's mantissa; the half keeps the result away from 0, where the logarithm ends.
    unit = (int(words(1, "explore", *key)[0] >> np.uint64(11)) + 0.5) * _MANTISSA  # in (0, 1)
    return -log(-log(unit))
