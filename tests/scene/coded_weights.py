"""Weights in fewer bits, over HTTP: a federation of wide adapters, requested recipes and differences."""

from __future__ import annotations

import httpx
import numpy as np
from numpy.typing import NDArray

from schemas.wire.envelope import MEDIA_TYPE
from tests.scene.coordinator import Silo
from tests.scene.rounds import plan, url

RANK = 40

LAYOUT = {"b0.q.P": (RANK, RANK), "b0.q.Q": (RANK,)}

PLAN = plan(adapter={"rank": RANK, "blocks": 1, "roles": ["q"]})


def request_weights(silo: Silo, number: int, recipe: str, **headers: str) -> httpx.Response:
    accept = f"{MEDIA_TYPE};recipe={recipe}, {MEDIA_TYPE}"
    return silo.http.get(url(silo, number, "/weights"), headers={"Accept": accept, **headers})


Arrays = dict[str, NDArray[np.float32]]
