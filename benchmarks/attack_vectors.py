"""Clients and attackers as vectors: a quick table of attacks, without training.

Three tasks of four honest clients each, and six attackers (docs/explanation/poisoning.md). An honest update
is the task's direction and noise of its own; attackers copy the sketches of the first task's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.guard import guard_weights
from coordinator.strategies.base import ClientFacts, Cohort, Floats, Sketch
from coordinator.strategies.opening import make

TASKS, HONEST, ATTACKERS = 3, 4, 6
VALUES = 4096
MODULE = "b0.q"
NOISE = 0.5  # beside a direction of length 1: two honest updates have a cosine of .8
_SKETCH_NOISE = 0.2
_BOOST = 20.0
STEALTH = 0.6  # how much of the attackers' direction is the task's own; the rest is poison


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts of a draw, all of which attackers know. Rows of `honest` (12, D) are of the tasks in turn."""

    task: Floats
    poison: Floats
    honest: Floats
    rng: np.random.Generator

    def noise(self) -> Floats:
        """Draw the part of one client's update that is its own, (D,)."""
        return direction(self.rng) * NOISE


def direction(rng: np.random.Generator) -> Floats:
    """Draw a direction of length 1, (D,)."""
    drawn = rng.standard_normal(VALUES)
    return drawn / np.linalg.norm(drawn)


def _stealth(scene: Scene) -> Floats:
    return STEALTH * scene.task + np.sqrt(1 - STEALTH**2) * scene.poison


def _hidden_in_noise(scene: Scene) -> Floats:
    """Replace half of the energy of noise by poison: cosines with honest clients stay as they are."""
    return scene.task + np.sqrt(0.5) * (scene.noise() + NOISE * scene.poison)


ATTACKS: Mapping[str, Callable[[Scene], list[Floats]]] = {
    "none": lambda scene: [],
    "flip": lambda scene: [-(scene.task + scene.noise()) for _ in range(ATTACKERS)],
    "boost x20": lambda scene: [-_BOOST * (scene.task + scene.noise()) for _ in range(ATTACKERS)],
    "stealth, copies": lambda scene: [_stealth(scene)] * ATTACKERS,
    "stealth, copies of any length": lambda scene: [_stealth(scene) * (1 + k) for k in range(ATTACKERS)],
    "stealth, decorrelated": lambda scene: [_stealth(scene) + scene.noise() for _ in range(ATTACKERS)],
    "hidden in noise": lambda scene: [_hidden_in_noise(scene) for _ in range(ATTACKERS)],
}
"""Name and updates of the attackers."""


@dataclass(frozen=True, slots=True)
class UpdateParts:
    """The mean update that is served to clients of the attacked task, as two coordinates.

    `right` is along the direction of the task, 1 at best; `poison` is along the attackers' direction.
    """

    right: float
    poison: float


def play(
    attack: str, strategy: str, options: Mapping[str, Any], *, seed: int, organisation: bool
) -> UpdateParts:
    """Weigh and mix once; with `organisation` the attackers are clients of one organisation."""
    rng = np.random.default_rng(seed)
    directions = [direction(rng) for _ in range(TASKS)]
    sketches = [direction(rng)[:64] for _ in range(TASKS)]
    scene = Scene(directions[0], direction(rng), np.empty(0), rng)
    updates = [directions[k // HONEST] + scene.noise() for k in range(TASKS * HONEST)]
    scene = Scene(directions[0], scene.poison, np.stack(updates), rng)
    updates += ATTACKS[attack](scene)
    clients = [
        client(
            k,
            sketches[k // HONEST if k < len(scene.honest) else 0],
            rng,
            "mallory" if organisation and k >= len(scene.honest) else None,
        )
        for k in range(len(updates))
    ]
    built = make(strategy, options)
    states = np.stack(updates)
    lengths = np.linalg.norm(states, axis=1)
    # A first round: what clients change is all that they have learnt.
    changes = states @ states.T / np.outer(lengths, lengths) if built.traits.compares_changes else None
    cohort = Cohort(clients, 1.0, changes)
    requested = built.weigh(cohort)
    weights = requested.of_module(MODULE)
    if built.caps is not None:
        products = {cohort.kind(MODULE): states @ states.T}
        weights = guard_weights(requested, products, built.caps).of_module(MODULE)
    inputs = (weights @ states)[:HONEST]
    return UpdateParts(float((inputs @ scene.task).mean()), float((inputs @ scene.poison).mean()))


def client(k: int, sketch: Floats, rng: np.random.Generator, organisation: str | None) -> ClientFacts:
    """Return a client whose sketch is that of its task and noise."""
    noise = rng.standard_normal(sketch.size) / np.sqrt(sketch.size) * np.linalg.norm(sketch)
    vector: NDArray[np.float32] = (sketch + _SKETCH_NOISE * noise).astype(np.float32)
    return ClientFacts(
        client=f"c{k:02}",
        base_model="m",
        alignment_set=None,
        modules={MODULE: (("b0.q.P", (VALUES,)),)},
        age=0,
        examples=10,
        sketch=Sketch(vector),
        sketch_model="m",
        is_source=True,
        organisation=organisation,
    )
