"""Training of an adapter on examples, as in a round, for tests without a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.adapters.base import Adapter, Penalty
from client_agent.adapters.provenance import origin_of
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.rounds.train import LocalTraining, train_locally, zeros_like
from client_agent.rounds.training_result import TrainingResult
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import DEFAULT_OPTIONS, Step, TrainingOptions, TrainingOutcome, train
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan

RATE = 0.01
"""The learning rate of plans that leave it to a search."""


def train_examples(
    base: BaseModel,
    adapter: Adapter,
    examples: Sequence[Example],
    plan: TrainingPlan,
    *,
    seed: int = 0,
    round_number: int = 1,
    optimiser_state: Mapping[str, NDArray[np.float32]] | None = None,
    on_step: Callable[[Step], None] | None = None,
    stop: Callable[[], bool] | None = None,
    penalty: Penalty | None = None,
    checkpoint: TrainingCheckpoint | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
) -> TrainingOutcome:
    """Train for the steps of a round; the schedule covers this round and those before it."""
    return train(
        base,
        adapter,
        encode_for(base, examples, plan.max_length),
        plan,
        learning_rate=RATE if plan.learning_rate == "auto" else plan.learning_rate,
        seed=seed,
        round_number=round_number,
        total_rounds=round_number,
        optimiser_state=optimiser_state,
        on_step=on_step,
        stop=stop,
        penalty=penalty,
        checkpoint=checkpoint,
        options=options,
    )


def train_with_penalty(
    base: BaseModel, adapter: Adapter, examples: Sequence[Example], plan: TrainingPlan
) -> TrainingOutcome:
    """Train for the steps of the first round with the adapter's own penalty."""
    return train_examples(
        base, adapter, examples, plan, penalty=adapter.penalty(examples, plan.max_length, 1)
    )


def losses_along(penalty: Penalty, adapter: Adapter, rate: float, steps: int = 12) -> list[float]:
    """Take Adam's steps along one loss term alone; return the term before each."""
    parameters = adapter.named_parameters()
    optimiser = torch.optim.Adam(parameters.values(), lr=rate)
    losses = []
    for _ in range(steps):
        loss = penalty(parameters)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def train_one_round(
    silo: Silo, adapter: Adapter, adapter_plan: AdapterPlan, plan: TrainingPlan, **changes: Any
) -> TrainingResult:
    """Run the local training of a federated round, by default the second of three, from zeros."""
    facts: dict[str, Any] = {
        "scores": ScoresPlan(),
        "origin": origin_of(silo.base, adapter_plan, {}, gated=False, seed=0),
        "learning_rate": RATE,
        "round_number": 2,
        "total_rounds": 3,
        "start": zeros_like(adapter),
        "earlier": None,
        "stop": lambda: False,
        "is_federated": True,
    }
    return train_locally(LocalTraining(silo=silo, adapter=adapter, plan=plan, **(facts | changes)))
