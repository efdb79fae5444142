"""Members of LoRA with ranks of their own."""

from __future__ import annotations

from typing import Any

from schemas.maths.adapter import Layout, lora_layout
from tests.scene.coordinator import Served, Silo

SHAPES = {"q": [5, 6], "down": [4, 5]}

RANKS_PLAN: dict[str, Any] = {
    "strategy": {"name": "het_lora", "options": {"r_min": 2}},
    "adapter": {"kind": "lora", "rank": 4, "blocks": 1, "roles": ["q", "down"]},
    "rounds": {"total": 3, "min_clients": 3, "collect_seconds": 600},
    "signature": {"dim": 4},
}


def layout_of_rank(rank: int) -> Layout:
    return lora_layout(2, {"q": (5, 6), "down": (4, 5)}, rank)


def running_ranks(served: Served, models: list[str]) -> tuple[str, list[Silo]]:
    federation_id = served.federation(**RANKS_PLAN)
    silos = [
        served.enrol(federation_id, f"c{i}", base_model=model, layers=2, shapes=SHAPES)
        for i, model in enumerate(models)
    ]
    served.start_federation(federation_id)
    return federation_id, silos
