"""Run by torchrun in tests: train a tiny adapter, led by rank 0, and write its tensors and losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.rounds.follower import follow_orders
from client_agent.training.loop import TrainingOutcome, train
from client_agent.training.ranks import Connection, Leader, Structure
from schemas.messages.federations import AdapterPlan, StrategyPlan, TrainingPlan
from tests.scene.tensors import filled_tensors

CPU = torch.device("cpu")


def train_on_ranks(
    model: Path, plan: AdapterPlan, training: TrainingPlan, leader: Leader | None
) -> tuple[dict[str, np.ndarray], TrainingOutcome]:
    """Train from random values for the steps of a round."""
    base = load_base_model(str(model), device=CPU, dtype=torch.float32)
    examples = [Example(f"add {n}=", str(7 * n)) for n in range(30)]
    frames = random_frames(base, plan, 3) if plan.kind == "pq" else {}
    with inject(base, plan, frames, gated=plan.kind == "pq", seed=0) as adapter:
        rng = np.random.default_rng(0)
        adapter.load({n: rng.normal(0, 0.02, s).astype(np.float32) for n, s in adapter.layout.items()})
        if plan.kind == "pq":
            adapter.load_global(filled_tensors(adapter.layout, 0.01))

        def train_it() -> TrainingOutcome:
            texts = encode_for(base, examples, training.max_length)
            facts = {"learning_rate": 0.01, "seed": 1, "round_number": 1, "total_rounds": 1}
            return train(base, adapter, texts, training, ranks=leader, **facts)

        if leader is None:
            outcome = train_it()
        else:
            strategy = StrategyPlan(name="fedavg")
            with leader.followed(base, Structure(plan, strategy, plan.kind == "pq", 0, frames)):
                outcome = train_it()
        return {**adapter.state(), **adapter.private_state()}, outcome


def main() -> None:
    model, plan, training, out = (Path(sys.argv[1]), *map(json.loads, sys.argv[2:4]), Path(sys.argv[4]))
    torch.set_num_threads(1)
    connection = Connection(CPU)
    if connection.rank > 0:
        follow_orders(connection, lambda: load_of(model))
        connection.close()
        return
    with Leader(connection) as leader:
        plans = AdapterPlan.model_validate(plan), TrainingPlan.model_validate(training)
        state, outcome = train_on_ranks(model, *plans, leader)
    np.savez(out, losses=np.array(outcome.losses), tokens=outcome.tokens, **state)


def load_of(model: Path) -> BaseModel:
    return load_base_model(str(model), device=CPU, dtype=torch.float32)


if __name__ == "__main__":
    main()
