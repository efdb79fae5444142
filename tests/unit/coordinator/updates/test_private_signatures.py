"""Sketches under differential privacy: a vector longer than the clip is refused, and epsilon is shown."""

from __future__ import annotations

import numpy as np

from tests.scene.coordinator import Served
from tests.scene.rounds import join, plan, put, running, show, update_body, values

SHORT = np.array([0.6, 0.0, 0.0, 0.8], np.float32)
PRIVATE = plan(
    strategy={"name": "fedmosaic"},
    signature={"dim": 4, "dp": {"epsilon": 4, "releases": 3}},
    rounds={"total": 1},
)


def test_private_plans_refuse_unclipped_sketches(coordinator: Served) -> None:
    for settings, status in ((PRIVATE, 422), (plan(), 201)):
        _, silos = running(coordinator, **settings)
        base = join(silos[0], 1)
        answer = put(silos[0], 1, update_body(silos[0], 1, base, values(1.0), signature=SHORT * 1.01))
        assert answer.status_code == status, answer.text
        if status == 422:
            assert answer.json()["type"] == "urn:tessera:problem:signature-vector"
            assert answer.json()["clip"] == 1.0
            assert "longer than 1;" in answer.text
        assert put(silos[0], 1, update_body(silos[0], 1, base, values(1.0), signature=SHORT)).status_code in (
            201,
            409,
        )


def test_reported_epsilon_of_sketches_is_optional_and_shown(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **PRIVATE)
    for silo, spent in zip(silos, ({"signature_epsilon": 0.75}, {}), strict=True):
        base = join(silo, 1)
        assert (
            put(silo, 1, update_body(silo, 1, base, values(1.0), signature=SHORT, **spent)).status_code == 201
        )
    assert [client["epsilon"] for client in show(coordinator, federation_id, 1)["clients"]] == [0.75, None]
