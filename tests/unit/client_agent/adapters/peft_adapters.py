"""Adapters of every kind with random values, and the logits of a model with them."""

from __future__ import annotations

import numpy as np

from client_agent.adapters.base import Adapter, LoraFactors
from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject
from client_agent.export.fold_shift import without_zero_shifts
from client_agent.model.loading import BaseModel
from schemas.maths.factors import Factors
from schemas.messages.federations import AdapterPlan
from tests.scene.tensors import random_tensors

EVERYTHING = "p and q, shared and private lora"

PLANS = {
    "p and q": AdapterPlan(rank=6, blocks=2, scale=1.5),
    EVERYTHING: AdapterPlan(rank=6, blocks=2, same_architecture_rank=3, private_rank=2, scale=1.5),
    "gated": AdapterPlan(rank=6, blocks=2),
    "gated, private lora": AdapterPlan(rank=6, blocks=2, private_rank=2),
    "lora": AdapterPlan(kind="lora", rank=3, scale=0.5),
    "folded lora": AdapterPlan(kind="lora", rank=3, scale=0.5),
    "last lora": AdapterPlan(kind="lora", rank=3, layers=2),
    "lora of two layers": AdapterPlan(kind="lora", rank=3, layers=(1, 3)),
    "last p and q": AdapterPlan(rank=6, blocks=2, same_architecture_rank=2, layers=2),
    "deep": AdapterPlan(rank=6, blocks=3, same_architecture_rank=2),
}

IDS = [[1, 5, 9, 14, 7, 22, 30, 6, 11]]


def random_adapter(base: BaseModel, name: str) -> Adapter:
    plan, gated = PLANS[name], name.startswith("gated")
    frames = random_frames(base, plan, 0) if plan.kind == "pq" else {}
    adapter = inject(base, plan, frames, gated=gated, seed=0)
    adapter.load(random_tensors(adapter.state(), 0, 0.2))
    adapter.load_private(random_tensors(adapter.private_state(), 1, 0.2))
    if name == "folded lora":
        (d_out, d_in), rng = base.shapes["v"], np.random.default_rng(3)
        factors = (0.5 * rng.standard_normal(shape) for shape in ((4, d_in), (d_out, 4)))
        adapter.load_base_delta({"l1.v": Factors(*(values.astype(np.float32) for values in factors))})
    if gated:
        shared = random_tensors(adapter.state(), 2, 0.2)
        adapter.load_global({n: np.zeros_like(v) if n.endswith(".Q") else v for n, v in shared.items()})
    return adapter


def without_shifts(adapter: Adapter) -> None:
    """Set Q to zero, local and global: a checkpoint has no place for an output shift."""
    adapter.load({n: np.zeros_like(v) if n.endswith(".Q") else v for n, v in adapter.state().items()})


def factors_of(adapter: Adapter) -> dict[str, LoraFactors]:
    return without_zero_shifts(adapter.as_lora())
