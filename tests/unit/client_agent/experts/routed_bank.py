"""A small bank beside a tiny model, with and without a router, for the tests of experts."""

from __future__ import annotations

import numpy as np
import torch

from client_agent.experts.routed_experts import RoutedExperts
from schemas.messages.federations import AdapterPlan, TrainingPlan
from schemas.strategies.fed_vemoe import FedVemoeOptions

PLAN = AdapterPlan(kind="lora", rank=2, roles=("q", "v", "down"))
TRAINING = TrainingPlan(steps=2, batch_size=4, max_length=64)
HARD = FedVemoeOptions(explore_rounds=2)
SOFT = FedVemoeOptions(top_m=3, explore_rounds=0, gamma=0.7)
EXPERTS = (0, 1, 2, 5)
IDS = torch.tensor([[1, 5, 9, 14, 7, 22], [1, 8, 30, 6, 11, 2]])


def with_router(adapter: RoutedExperts, seed: int = 1) -> None:
    """Choose experts 1 and 5, unequally responsible, with rows of a trained router."""
    rng = np.random.default_rng(seed)
    rows = {n: v for n, v in adapter.private_state().items() if n.startswith("router.")}
    trained = {n: np.asarray(0.5 * rng.standard_normal(v.shape), np.float32) for n, v in rows.items()}
    routing = {"routing.x1": 0.5, "routing.x2": 0.2, "routing.x5": 0.3}
    adapter.load_private(
        {
            **trained,
            **{name: np.array(r, np.float32) for name, r in routing.items()},
            "routing.chosen": np.array([1, 5], np.float32),
        }
    )
