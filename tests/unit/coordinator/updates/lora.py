"""A federation of ordinary LoRA on one module."""

from __future__ import annotations

import numpy as np

from schemas.maths.start import first_a
from schemas.messages.recipes import RecipeName
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import Tensors, plan

SEED = 4

START: Tensors = {
    "l0.q.A": first_a("l0.q.A", (2, 5), SEED).reshape(2, 5),
    "l0.q.B": np.zeros((3, 2), np.float32),
}


def lora_silo(coordinator: Served, recipe: RecipeName, **limits: float) -> Silo:
    """Start a federation of ordinary LoRA on one module, and return one of its two silos."""
    settings = plan(wire={"recipe": recipe}, training={"seed": SEED}, limits=limits)
    settings["adapter"] = {"kind": "lora", "rank": 2, "roles": ["q"], "blocks": 1}
    federation_id = coordinator.federation(**settings)
    silos = [
        coordinator.enrol(federation_id, f"s{i}", layers=1, shapes={"q": [3, 5]}, roles=["q"])
        for i in range(2)
    ]
    coordinator.start_federation(federation_id)
    return silos[0]
