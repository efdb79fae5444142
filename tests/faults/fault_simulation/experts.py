"""Agents with a bank of experts: their choice and their simulated training.

In most rounds most agents choose the same expert; all of them, most or none reject the bank. Experts cost all
agents nothing in each other's place: those with enough members are merged where the plan is impatient.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.experts.memory import Choice, ExpertMemory
from client_agent.experts.part import BankOfExperts
from schemas.maths.adapter import Layout
from schemas.maths.bank import SHARED, bank_tensors, expert_tensors
from tests.faults.fault_simulation.fault_rates import Plan

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

State = Mapping[str, NDArray[np.float32]]


@dataclass
class Injected:
    """Stands for an adapter around a base model."""

    layout: Layout

    @property
    def adapter(self) -> Injected:
        """Stands for the placed adapter too."""
        return self

    def __enter__(self) -> Injected:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return parameters of the layout, which are not trained."""
        return {name: nn.Parameter(torch.zeros(shape)) for name, shape in self.layout.items()}

    def shared(self, start: State) -> State:
        """Return the start state that all clients of a round share."""
        return start

    def trained(self, world: World, place: tuple[int, int, int], start: State, change: State) -> State:
        """Return the adapter after a training of (agent, round, attempt) with this change."""
        return change


@dataclass
class InjectedBank(Injected):
    """Stands for a bank around a base model; `layout` is that of one expert."""

    specialists: Sequence[int]
    memory: ExpertMemory
    since: int = 0

    @property
    def bank(self) -> InjectedBank:
        return self

    @property
    def expert_layout(self) -> Layout:
        return self.layout

    def shared(self, start: State) -> State:
        return expert_tensors(SHARED, start)

    def trained(self, world: World, place: tuple[int, int, int], start: State, change: State) -> State:
        choice = chosen(world.seed, place, self.specialists)
        self.memory.record(place[1], choice)
        world.oracle.bank.trained(place[0], place[1], start, choice)
        (expert,) = choice.trained
        return {**start, **bank_tensors(SHARED, change), **bank_tensors(expert, change)}


def chosen(seed: int, place: tuple[int, int, int], specialists: Sequence[int]) -> Choice:
    """Draw what an agent chooses in an attempt at a round's training."""
    mood = random.Random(f"mood {seed} {place[1]}")
    favourite, rejecting = mood.choice(specialists), mood.choice([0.0, 0.7, 1.0])
    agreed = mood.choice([0.8, 0.8, 0.0])
    dice = random.Random(f"choice {seed} {place}")
    expert = favourite if dice.random() < agreed else dice.choice(specialists)
    return Choice(
        responsibilities={expert: dice.choice([0.5, 1.0])},
        trained=(expert,),
        exploring=False,
        rejects=dice.random() < rejecting,
        differences={expert: {other: 0.0 for other in specialists if other != expert}},
    )


@contextmanager
def banks_without_models(plan: Plan) -> Iterator[None]:
    """Replace the choice of experts, in a schedule with a bank, by one without a model."""
    if plan.summed is None or plan.summed.bank is None:
        yield
        return

    with patch.object(BankOfExperts, "silo", lambda _, silo: silo):
        yield
