"""Clients and attackers as vectors over several rounds: poison that is planted once, and kept.

What clients change shows poison only in the round in which it is planted. Afterwards it is in the state from
which the attackers begin, and they train as honest clients do. The poison stands for a backdoor, which honest
training does not remove. The scene is that of `attack_vectors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.attack_vectors import HONEST, MODULE, NOISE, STEALTH, TASKS, UpdateParts, client, direction
from coordinator.aggregation.changes import Changes, summed
from coordinator.aggregation.guard import guard_weights
from coordinator.strategies.base import Cohort
from coordinator.strategies.opening import make

ROUNDS = 6
_STEP = 0.5
"""The share of the way to its own optimum that a client goes in the first round; it falls to zero."""
_STEP_NOISE = 0.3


@dataclass(frozen=True, slots=True)
class Planting:
    """The attackers of a scene.

    Attributes:
        attackers: their number.
        one_organisation: whether they share an organisation.
        topped_up: whether they add poison in every round, so that its share in their states stays the same.
    """

    attackers: int
    one_organisation: bool = False
    topped_up: bool = False


PLANTINGS: Mapping[str, Planting] = {
    "planted by one": Planting(1),
    "planted by two": Planting(2),
    "planted by six": Planting(6),
    "planted by six, topped up": Planting(6, topped_up=True),
    "planted by six of one organisation": Planting(6, one_organisation=True),
}


def play(planting: Planting, options: Mapping[str, Any], *, seed: int) -> UpdateParts:
    """Return what clients of the attacked task are served after the last round, under `fedmosaic`."""
    rng = np.random.default_rng(seed)
    tasks = [direction(rng) for _ in range(TASKS)]
    sketches = [direction(rng)[:64] for _ in range(TASKS)]
    poison = direction(rng)
    honest = TASKS * HONEST
    task_of = [k // HONEST if k < honest else 0 for k in range(honest + planting.attackers)]
    organisation = "mallory" if planting.one_organisation else None
    clients = [
        client(k, sketches[task], rng, organisation if k >= honest else None)
        for k, task in enumerate(task_of)
    ]
    optima = np.stack([tasks[task] + NOISE * direction(rng) for task in task_of])  # (N, D)
    strategy = make("fedmosaic", options)
    served = np.zeros_like(optima)
    progress = 0.0  # the share of the way to the optimum so far
    earlier: Changes | None = None
    for number in range(ROUNDS):
        step = _STEP * (1 - number / ROUNDS)
        progress += step * (1 - progress)
        noise = np.stack([_STEP_NOISE * direction(rng) for _ in task_of])
        changes = step * (optima - served + noise)
        # Nothing in honest examples contradicts the backdoor, so that training leaves it where it is.
        changes -= np.outer(changes @ poison, poison)
        if number == 0:
            stealth = STEALTH * tasks[0] + np.sqrt(1 - STEALTH**2) * poison
            changes[honest:] = step * (stealth + optima[honest:] - tasks[0])
        elif planting.topped_up:
            missing = np.sqrt(1 - STEALTH**2) * progress - served[honest:] @ poison
            changes[honest:] += np.outer(np.maximum(0.0, missing), poison)
        states = served + changes
        cohort = Cohort(clients, 1.0, None)
        kind = cohort.kind(MODULE)
        if strategy.traits.compares_changes:
            earlier = summed(cohort, {kind: changes @ changes.T}, earlier)
            cohort = Cohort(clients, 1.0, earlier.cosines())
        requested = strategy.weigh(cohort)
        weights = requested.of_module(MODULE)
        if strategy.caps is not None:
            guarded = guard_weights(requested, {kind: states @ states.T}, strategy.caps)
            weights = guarded.of_module(MODULE)
        served = weights @ states
    attacked = served[:HONEST]
    return UpdateParts(float((attacked @ tasks[0]).mean()), float((attacked @ poison).mean()))
