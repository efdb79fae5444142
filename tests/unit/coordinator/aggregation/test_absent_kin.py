"""A base model whose clients all miss a round: its members and newcomers start from its last weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import deliver, join, layout_for, wait_for, weights
from tests.scene.tensors import random_tensors

PRESENT, ABSENT = "tiny-l-bbbbbbbbbbbb", "tiny-s-aaaaaaaaaaaa"
FORM: dict[str, Any] = {"layers": 2, "shapes": {"q": [5, 6], "down": [4, 5]}}
SPARSE = {"recipe": {"reference": "served", "density": 0.9, "values": "int8"}}
Tensors = dict[str, NDArray[np.float32]]


def start_federation(served: Served, strategy: str) -> str:
    federation_id = served.federation(
        strategy={"name": strategy},
        adapter={"kind": "lora", "rank": 2, "blocks": 1, "roles": ["q", "down"]},
        rounds={"total": 6, "min_clients": 1, "collect_seconds": 600, "max_staleness": 0},
        signature={"dim": 4},
        **({"wire": SPARSE} if strategy == "ca_pfl" else {}),
    )
    served.start_federation(federation_id)
    return federation_id


def play_round(served: Served, number: int, *silos: Silo) -> None:
    for silo in silos:
        join(silo, number)
    for place, silo in enumerate(silos):
        deliver(silo, number, random_tensors(layout_for(silo), 10 * number + place))
    wait_for(served, silos[0].federation_id, number, "published")


def joined_weights(silo: Silo, number: int) -> Tensors:
    join(silo, number)
    return weights(silo, number, layout_for(silo))


@pytest.mark.parametrize("strategy", ["ca_pfl", "fedavg", "fedsa_lora", "lora_fair"])
def test_an_absent_base_model_keeps_its_last_weights(coordinator: Served, strategy: str) -> None:
    federation_id = start_federation(coordinator, strategy)
    present = coordinator.enrol(federation_id, "here", base_model=PRESENT, **FORM)
    away = [coordinator.enrol(federation_id, f"away-{i}", base_model=ABSENT, **FORM) for i in range(2)]
    play_round(coordinator, 1, present, *away)
    play_round(coordinator, 2, present)
    new = coordinator.enrol(federation_id, "new", base_model=ABSENT, **FORM)
    common = joined_weights(new, 3)
    sent = [random_tensors(layout_for(silo), 11 + place) for place, silo in enumerate(away)]
    assert all(values.any() for values in common.values())
    for silo in away:
        for name, values in joined_weights(silo, 3).items():
            np.testing.assert_array_equal(values, common[name])
    if strategy in ("ca_pfl", "fedavg"):  # what others make of two updates is told elsewhere
        for name, values in common.items():
            np.testing.assert_allclose(values, (sent[0][name] + sent[1][name]) / 2, atol=1e-6)
    play_round(coordinator, 3, present, new, *away)
    after = [joined_weights(silo, 4) for silo in (new, *away)]
    for name, values in after[0].items():
        assert np.abs(values - common[name]).max() > 0.1
        for served in after[1:]:
            np.testing.assert_array_equal(served[name], values)
