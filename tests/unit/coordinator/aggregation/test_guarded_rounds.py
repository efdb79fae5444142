"""The guard in rounds of a coordinator: the served weights and the reported reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from coordinator.db.tables.federations import RelevanceRow
from schemas.maths.start import first_a
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import (
    deliver,
    fedmosaic_plan,
    join,
    layout_for,
    put,
    running,
    update_body,
    url,
    wait_for,
    weights,
)
from tests.scene.tensors import filled_tensors

EAST, NORTH = (np.array(way, np.float32) for way in ([1.0, 0, 0, 0], [0, 1.0, 0, 0]))
ALIKE = EAST
LORA = {"q": [3, 4]}


def fedmosaic(**options: Any) -> dict[str, Any]:
    return fedmosaic_plan(options, min_clients=3)


def adapter(*direction: float, times: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """Return P and Q that begin with these values."""
    flat = np.zeros(6, np.float32)
    flat[: len(direction)] = np.array(direction) * times
    return {"b0.q.P": flat[:4].reshape(2, 2), "b0.q.Q": flat[4:]}


def served_vector(silo: Silo, number: int) -> NDArray[np.float32]:
    join(silo, number)
    served = weights(silo, number)
    return np.concatenate([served["b0.q.P"].ravel(), served["b0.q.Q"]])


def publish_first_round(
    coordinator: Served, sent: list[dict[str, NDArray[np.float32]]], **options: Any
) -> Any:
    plan = fedmosaic(**options) | {"rounds": {"total": 3, "min_clients": len(sent), "collect_seconds": 600}}
    federation_id, silos = running(coordinator, clients=len(sent), **plan)
    for silo, tensors in zip(silos, sent, strict=True):
        deliver(silo, 1, tensors, signature=ALIKE)
    wait_for(coordinator, federation_id, 1, "published")
    return federation_id, silos


def test_the_guard_stops_a_boosted_flip(coordinator: Served) -> None:
    honest = [adapter(1.0, 0.2), adapter(1.0, -0.2)]
    sent = [*honest, adapter(-1.0, times=50)]
    federation_id, silos = publish_first_round(coordinator, sent, evidence="sketches")
    np.testing.assert_allclose(served_vector(silos[0], 2)[:2], [1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(served_vector(silos[1], 2)[:2], [1.0, 0.0], atol=1e-6)
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert shown["relevance"][0] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert shown["served"][0] == pytest.approx([0.5, 0.5, 0.0])
    assert shown["changes"] is None
    assert shown["agreement"][0][2] < -0.9
    assert shown["held"][0] == [[], [], ["large", "opposed"]]
    relevance = silos[1].http.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert relevance["rows"] == [silos[1].client_id], "a client sees its own row only"
    assert [len(relevance[part]) for part in ("served", "held")] == [1, 1]
    assert (relevance["similarity"], relevance["agreement"]) == (None, None)
    assert relevance["held"][0][2] == ["large", "opposed"]


def test_a_boosted_flip_succeeds_without_the_guard(coordinator: Served) -> None:
    honest = [adapter(1.0, 0.2), adapter(1.0, -0.2)]
    sent = [*honest, adapter(-1.0, times=50)]
    federation_id, silos = publish_first_round(coordinator, sent, guard="off", evidence="sketches")
    assert served_vector(silos[0], 2)[0] == pytest.approx(-16.0)
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert (shown["served"], shown["agreement"], shown["held"]) == (None, None, None)


def test_changes_leave_a_boosted_flip_without_relevance(coordinator: Served) -> None:
    honest = [adapter(1.0, 0.2), adapter(1.0, -0.2)]
    federation_id, silos = publish_first_round(coordinator, [*honest, adapter(-1.0, times=50)], guard="off")
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert shown["changes"][0] == pytest.approx([1.0, 0.923, -0.981], abs=1e-3)
    assert shown["relevance"][0] == pytest.approx([0.5, 0.5, 0.0], abs=1e-3)
    np.testing.assert_allclose(served_vector(silos[0], 2)[:2], [1.0, 0.0], atol=1e-3)
    relevance = silos[1].http.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert relevance["changes"] is None


def test_earlier_changes_fade_beside_the_present_rounds(coordinator: Served) -> None:
    federation_id, silos = publish_first_round(coordinator, [adapter(1.0), adapter(1.0)], guard="off")
    began = {silo.client_id: served_vector(silo, 2) for silo in silos}
    for silo, change in zip(silos, ([0.0, 3.0], [0.0, -3.0]), strict=True):
        np.testing.assert_allclose(began[silo.client_id][:2], [1.0, 0.0], atol=1e-6)
        deliver(silo, 2, adapter(1.0 + change[0], change[1]), signature=ALIKE)
    wait_for(coordinator, federation_id, 2, "published")
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/2/relevance").json()
    # Half of 1 . 1 at length 1, and -9 at length 9.
    assert shown["changes"][0][1] == pytest.approx((0.5 - 9) / (0.5 + 9), abs=1e-3)
    assert shown["relevance"][0] == pytest.approx([1.0, 0.0], abs=1e-3)


def test_changes_stored_by_release_0_2_are_read(coordinator: Served) -> None:
    """That release stored products and lengths of changes, and no cosines."""
    federation_id, silos = publish_first_round(coordinator, [adapter(1.0), adapter(1.0)], guard="off")
    with coordinator.database.write() as session:
        of_silos = RelevanceRow.client_id.in_([silo.client_id for silo in silos])
        for row in session.scalars(select(RelevanceRow).where(of_silos)).all():
            assert row.changes is not None
            row.changes = row.changes[: len(row.changes) // 2]
    path = f"/v1/federations/{federation_id}/rounds"
    assert coordinator.admin.get(f"{path}/1/relevance").json()["changes"][0] == pytest.approx([1.0, 1.0])
    for silo, change in zip(silos, (3.0, -3.0), strict=True):
        served_vector(silo, 2)
        deliver(silo, 2, adapter(1.0, change), signature=ALIKE)
    wait_for(coordinator, federation_id, 2, "published")
    shown = coordinator.admin.get(f"{path}/2/relevance").json()
    assert shown["changes"][0][1] == pytest.approx((0.5 - 9) / (0.5 + 9), abs=1e-3)


def test_a_newcomers_weights_resist_a_boosted_update(coordinator: Served) -> None:
    federation_id, _ = publish_first_round(
        coordinator, [adapter(1.0), adapter(1.0, 0.1), adapter(0.0, 1.0, times=900)]
    )
    served = served_vector(coordinator.enrol(federation_id, "new"), 2)
    assert np.linalg.norm(served) < 1.2


def test_agreement_and_changes_exclude_the_start_of_lora(coordinator: Served) -> None:
    """Two that learn opposite things share the drawn A: their states resemble each other all the same."""
    plan = fedmosaic() | {
        "adapter": {"kind": "lora", "rank": 2, "blocks": 1, "roles": ["q"]},
        "training": {"seed": 7},
    }
    plan["rounds"] = {"total": 3, "min_clients": 2, "collect_seconds": 600}
    federation_id = coordinator.federation(**plan)
    silos = [coordinator.enrol(federation_id, f"silo-{i}", layers=1, shapes=LORA) for i in range(2)]
    coordinator.start_federation(federation_id)
    silos.sort(key=lambda silo: silo.client_id)
    a = first_a("l0.q.A", (2, 4), 7).reshape(2, 4)
    for silo, change in zip(silos, (0.1, -0.1), strict=True):
        tensors = {"l0.q.A": a + np.float32(change), "l0.q.B": np.full((3, 2), change, np.float32)}
        base = join(silo, 1)
        assert put(silo, 1, update_body(silo, 1, base, tensors, signature=ALIKE)).status_code == 201
    wait_for(coordinator, federation_id, 1, "published")
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance").json()
    assert shown["agreement"][0] == pytest.approx([1.0, -1.0], abs=1e-6)
    # They began with zeros, which stand for that start.
    assert shown["changes"][0] == pytest.approx([1.0, -1.0], abs=1e-6)
    assert shown["served"] == [[1.0, 0.0], [0.0, 1.0]]


def test_layers_of_a_single_base_model_are_mixed(coordinator: Served) -> None:
    plan = fedmosaic(guard="off") | {"adapter": {"kind": "lora", "rank": 2, "blocks": 1, "roles": ["q"]}}
    plan["rounds"] = {"total": 3, "min_clients": 4, "collect_seconds": 600}
    federation_id = coordinator.federation(**plan)
    models = [("tiny-s-000000000000", 1), ("tiny-l-000000000000", 2)]
    silos = [
        coordinator.enrol(federation_id, f"{model}-{i}", base_model=model, layers=layers, shapes=LORA)
        for model, layers in models
        for i in range(2)
    ]
    coordinator.start_federation(federation_id)
    sent = {}
    for i, silo in enumerate(silos):
        layout = layout_for(silo)
        sent[silo.client_id] = filled_tensors(layout, 1.0 + 0.1 * i)
        deliver(silo, 1, sent[silo.client_id], signature=ALIKE)
    wait_for(coordinator, federation_id, 1, "published")
    for silo, peer in ((silos[0], silos[1]), (silos[2], silos[3])):
        join(silo, 2)
        for name, values in weights(silo, 2, layout_for(silo)).items():
            mean = (sent[silo.client_id][name] + sent[peer.client_id][name]) / 2
            np.testing.assert_allclose(values, mean, rtol=1e-3)
    newcomer = coordinator.enrol(federation_id, "new", base_model=models[1][0], layers=2, shapes=LORA)
    join(newcomer, 2, ALIKE)
    assert newcomer.http.get(url(newcomer, 2, "/weights")).status_code == 200
