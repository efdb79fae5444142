"""Private training in a schedule: the product's ledger pays for steps that read no examples.

I31: every step that an agent began is in its ledger, whatever killed the agent and whatever its disk lost;
and an update of private training names its cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client_agent.model.examples import Example
from client_agent.privacy.budget import LedgerDamaged
from client_agent.privacy.ledger import Ledger
from client_agent.training.private_steps import PrivateSteps
from schemas.messages.sketches import SignaturePlan

if TYPE_CHECKING:
    from sqlite3 import Connection

    from tests.faults.fault_simulation.world import World

EXAMPLES = tuple(Example(f"What is {number}?", "a number") for number in range(10))
"""A step and a sketch sample all of them, so that both have one mechanism, whose noise is computed once."""

STEPS = 2
"""Private steps of a round."""

PAID = 500
"""Steps of the budget: more than an agent repeats in a schedule, so that none stops with its budget spent."""


def private_training() -> dict[str, Any]:
    """Return `privacy.training` of a schedule."""
    return {"epsilon": 8.0, "steps": PAID}


def private_sketches() -> dict[str, Any]:
    """Return `signature.dp` of a schedule: who trains privately also sends private sketches."""
    return {"epsilon": 8.0, "releases": PAID, "minimum_sample": 5}


def sketches(_: object, examples: Sequence[Example], plan: SignaturePlan) -> Iterator[NDArray[np.float64]]:
    """Yield a sketch of each example, which depends on its place alone."""
    yield from (np.eye(plan.dim)[place % plan.dim] for place in range(len(examples)))


class StepsBegun:
    """The steps that agents began, by folder: more than the ledger has would be unpaid."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun: Counter[Path] = Counter()

    def take(self, private: PrivateSteps, folder: Path) -> None:
        """Take the steps of a round: draw each sample, of which nothing is read, and let time pass."""
        for _ in private.samples(STEPS):
            self._begun[folder] += 1
            self._world.count("private steps")
            self._world.scheduler.sleep(self._world.scheduler.dice.uniform(0.1, 2.0))

    def settle(self, connection: Connection) -> None:
        """Compare the steps with the ledgers, and look for updates that name no cost."""
        for folder, begun in sorted(self._begun.items()):
            try:
                entries = Ledger(folder).read().training
            except LedgerDamaged:
                entries = ()
            if sum(entry.begun for entry in entries) < begun:
                self._violated(f"{folder.name} began {begun} private steps; the ledger has fewer")
            if any(entry.begun > entry.steps for entry in entries):
                self._violated(f"{folder.name} began private steps that it had not paid for")
        if not self._world.plan.private or self._world.plan.summed is not None:
            return
        (silent,) = connection.execute(
            "SELECT count(*) FROM updates WHERE training_epsilon IS NULL AND reject_reason IS NULL"
        ).fetchone()
        if silent:
            self._violated(f"{silent} updates do not name the cost of their training")

    def _violated(self, event: str) -> None:
        self._world.violated("I31", event)
