"""Sums over aligned base models, and their restart when a pack is deleted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.messages.secure_sum import CAPABILITY
from tests.scene.alignment import ANCHORS, LARGE, PIVOT, deliver_pack, pack_body, pack_tensors
from tests.scene.coordinator import Served, slug
from tests.scene.rounds import try_join, url, wait_for, weights
from tests.scene.sum_members import VALUES
from tests.scene.sums_in_clear import sum_up, summed


def _pack(federation_id: str, base_model: str, **fields: Any) -> bytes:
    arrays = {
        name: values for name, values in pack_tensors(base_model).items() if not name.startswith("b0.v")
    }
    errors = {"b0.q": {"a": 0.1, "b_token": 0.9, "b_task": 0.5}}
    if "offsets" in arrays:
        arrays["offsets"] = np.arange(21, dtype=np.int32).reshape(7, 3)
    return pack_body(federation_id, base_model, arrays, errors=errors, **fields)


def _federation(served: Served) -> str:
    federation_id = served.federation(
        **summed(3)
        | {
            "adapter": {"rank": 2, "blocks": 1, "roles": ["q", "v"], "target_modules": ["b0.q"]},
            "alignment": {"pivot": PIVOT, "anchors": len(ANCHORS["anchors"])},
        }
    )
    assert served.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS).status_code == 201
    for base_model in (PIVOT, LARGE):
        stored = deliver_pack(served.admin, federation_id, base_model, _pack(federation_id, base_model))
        assert stored.status_code == 201, stored.text
    return federation_id


@pytest.mark.slow
def test_deleting_the_pivots_pack_restarts_an_aligned_sum(coordinator: Served) -> None:
    federation_id = _federation(coordinator)
    silos = [coordinator.enrol(federation_id, f"s{i}", base_model=PIVOT) for i in range(2)]
    silos.append(coordinator.enrol(federation_id, "other", base_model=LARGE))
    coordinator.start_federation(federation_id)
    silos.sort(key=lambda silo: silo.client_id)
    published = sum_up(coordinator, federation_id, silos, [0.3, 0.3, 0.3])
    assert published["secure_sum"]["counted"] == 3
    assert try_join(silos[0], 2).status_code == 200
    np.testing.assert_allclose(weights(silos[0], 2)["b0.q.P"], 0.3, atol=1e-4)
    deleted = coordinator.admin.delete(f"/v1/federations/{federation_id}/alignments/{PIVOT}")
    assert deleted.status_code in (200, 204), deleted.text
    wait_for(coordinator, federation_id, 2, "abandoned")
    for base_model in (PIVOT, LARGE):
        content = _pack(federation_id, base_model, alignment_set="sha256:" + "7" * 64)
        assert deliver_pack(coordinator.admin, federation_id, base_model, content).status_code == 201
    for silo in silos:
        joined = try_join(silo, 3)
        assert joined.status_code == 200, joined.text
        assert not weights(silo, 3)["b0.q.P"].any()
        base = joined.json()["weights"]["digest"]
        ready = silo.http.put(
            url(silo, 3, "/ready"), json={"base": base, "values": VALUES, "format": CAPABILITY}
        )
        assert ready.status_code == 201, ready.text


def test_base_models_of_different_alignment_sets_are_refused(coordinator: Served) -> None:
    federation_id = _federation(coordinator)
    third = "tiny-m-bbbbbbbbbbbb"
    arrays = {"b0.q.A": np.full((2, 8), 0.5, np.float32), "b0.q.B": np.full((9, 2), 0.25, np.float32)}
    errors = {"b0.q": {"a": 0.1, "b_token": 0.9, "b_task": 0.5}}
    content = pack_body(federation_id, third, arrays, errors=errors, selected=[])
    assert deliver_pack(coordinator.admin, federation_id, third, content).status_code == 201
    silos = [
        coordinator.enrol(federation_id, name, base_model=base_model)
        for name, base_model in (("a", PIVOT), ("b", LARGE), ("c", third))
    ]
    coordinator.start_federation(federation_id)
    assert [try_join(silo, 1).status_code for silo in silos[:2]] == [200, 200]
    refused = try_join(silos[2], 1)
    assert (refused.status_code, slug(refused)) == (422, "layout-mismatch")
