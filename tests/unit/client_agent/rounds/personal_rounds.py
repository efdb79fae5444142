"""Rounds of a silo whose adapter has parts of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from client_agent.rounds.adapter_in_place import put_in_place
from client_agent.rounds.part import Setting
from client_agent.rounds.strategy import load_strategy
from client_agent.rounds.train import zeros_like
from client_agent.rounds.training_result import Arrays, TrainingResult
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from tests.scene.local_training import train_one_round

LORA = AdapterPlan(kind="lora", rank=4, roles=["v", "down"])

PLAN = TrainingPlan(steps=4, batch_size=4, max_length=64, learning_rate=0.01, weight_decay=0.0)

SCORES = ScoresPlan(examples=8, new_tokens=0)


def rounds(
    silo: Silo,
    strategy: str | None,
    *,
    plan: TrainingPlan = PLAN,
    number: int = 2,
    served: Arrays | None = None,
    checkpoint: TrainingCheckpoint | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: float,
) -> list[TrainingResult]:
    """Train rounds in which a client is served its own update, or `served` from round 2 on."""
    opened = load_strategy(strategy or "fedavg", options)
    results: list[TrainingResult] = []
    setting = Setting(silo, LORA, {}, seed=0, max_length=plan.max_length, home=Path())
    with put_in_place(setting, opened.parts) as adapter:
        for round_number in range(1, number + 1):
            earlier = results[-1] if results else None
            results.append(
                train_one_round(
                    silo,
                    adapter,
                    LORA,
                    plan,
                    scores=SCORES,
                    round_number=round_number,
                    total_rounds=number,
                    start=zeros_like(adapter) if earlier is None else served or earlier.adapter,
                    earlier=earlier,
                    stop=stop,
                    parts=opened.parts,
                    is_federated=strategy is not None,
                    checkpoint=checkpoint,
                )
            )
    return results


def distance(left: Arrays, right: Arrays) -> float:
    return float(np.sqrt(sum(np.square(left[name] - right[name]).sum() for name in left)))


def assert_equal(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], name)
