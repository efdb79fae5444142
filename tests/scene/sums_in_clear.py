"""Rounds whose clients send inputs of the sum without masks, with known changes and losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.secure_sum.encoding import CLIP_UNIT, quantise
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import plan, values, wait_for
from tests.scene.sum_members import MASKED, SumClient, make_ready, roster_of

CLIP = 1.0
LOSSES = [(2.0, 1.0), (4.0, 2.0), (3.0, 0.0), (1.0, 1.0)]
ORDER = sorted(values(0.0))


def summed(clients: int = 4, **secure_sum: Any) -> dict[str, Any]:
    secure_sum = {"masking": "none", "minimum": 3, "clip": CLIP, **secure_sum}
    return plan(privacy={"secure_sum": secure_sum}, rounds={"total": 3, "min_clients": clients})


def encoded(change: float, losses: tuple[float, float]) -> NDArray[np.int32]:
    """Encode four values of P, two of Q and two losses, as an agent does."""
    unit = round(1 / CLIP_UNIT)
    encoded_values = quantise(np.full(6, change, np.float32), round(CLIP * unit), 16)
    return np.concatenate([encoded_values, quantise(np.array(losses, np.float32), 16 * unit, 16)])


def sum_up(served: Served, federation_id: str, silos: list[Silo], changes: list[float]) -> dict[str, Any]:
    """Send the inputs of round 1 in clear for all clients; return the published round."""
    for silo in silos:
        make_ready(silo)
    clients = [SumClient(silo, 1) for silo in silos]
    keys, version, link = roster_of(served.admin, federation_id)
    for client, change, losses in zip(clients, changes, LOSSES, strict=False):
        client.input = encoded(change, losses)
        client.begin(keys, version, link)
    for client in clients:
        sent = client.put(MASKED)
        assert sent.status_code == 201, sent.text
    return wait_for(served, federation_id, 1, "published")
