"""Updates are stored once, whatever is repeated, and read back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore, Event
from typing import Any

import numpy as np
import pytest

from coordinator.http.limits import concurrency
from tests.scene.coordinator import Served, slug
from tests.scene.rounds import (
    SIGNATURE,
    deliver,
    join,
    one_round,
    plan,
    put,
    running,
    show,
    tensors_of,
    update_body,
    values,
    wait_for,
    weights,
)

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def test_repeated_updates_return_their_receipt_after_the_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    base = join(silos[0], 1)
    body = update_body(silos[0], 1, base, values(1.0))
    first = put(silos[0], 1, body)
    assert first.status_code == 201
    receipt = first.json()
    assert (receipt["bytes"], receipt["round"], receipt["client"]) == (len(body), 1, silos[0].client_id)
    assert receipt["clipped"] is False
    again = put(silos[0], 1, body)
    assert (again.status_code, again.json()) == (200, receipt)
    deliver(silos[1], 1, values(2.0))
    wait_for(coordinator, federation_id, 1, "published")
    again = put(silos[0], 1, body)
    assert (again.status_code, again.json()) == (200, receipt)
    second = put(silos[0], 1, update_body(silos[0], 1, base, values(5.0)))
    assert (second.status_code, slug(second)) == (409, "upload-conflict")


def test_compressed_and_float16_updates_are_averaged(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    base = join(silos[0], 1)
    body = update_body(silos[0], 1, base, values(1.5), compress=True)
    assert put(silos[0], 1, body, "zstd").status_code == 201
    halves = {name: tensor.astype(np.float16) for name, tensor in values(0.5).items()}
    deliver(silos[1], 1, halves)  # type: ignore[arg-type]
    wait_for(coordinator, federation_id, 1, "published")
    join(silos[0], 2)
    assert (weights(silos[0], 2)["b0.q.Q"] == 1.0).all()


def test_an_update_over_the_clip_norm_is_clipped(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(limits={"clip_norm": 1.0}))
    receipt = deliver(silos[0], 1, values(100.0)).json()
    assert receipt["clipped"] is True
    deliver(silos[1], 1, values(0.0))
    shown = wait_for(coordinator, federation_id, 1, "published")
    assert shown["clients"][0]["norm"] == pytest.approx(100 * np.sqrt(6))
    join(silos[0], 2)
    assert float(weights(silos[0], 2)["b0.q.Q"][0]) == pytest.approx(0.5 / np.sqrt(6))


def test_sketches_are_optional_for_strategies_without_them(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator)
    assert deliver(silo, 1, values(1.0), signature=None).status_code == 201


def test_sketches_are_required_by_strategies_with_them(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator, **plan(strategy={"name": "fedmosaic"}))
    answer = put(silo, 1, update_body(silo, 1, join(silo, 1), values(1.0), signature=None))
    assert (answer.status_code, slug(answer)) == (422, "tensor-schema")


def test_clients_and_operators_read_back_an_update(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0])
    one_round(coordinator, federation_id, silos, 2, [3.0, 4.0])
    path = f"/v1/federations/{federation_id}/clients/{silos[0].client_id}/adapter"
    for caller, query, fill in (
        (silos[0].http, "?round=1", 1.0),
        (silos[0].http, "", 3.0),
        (coordinator.person("operator"), "?round=2", 3.0),
    ):
        assert (tensors_of(caller.get(path + query))["b0.q.P"] == fill).all()
    assert slug(silos[1].http.get(path)) == "not-found"
    assert slug(coordinator.person("auditor").get(path)) == "forbidden"
    assert slug(silos[0].http.get(path + "?round=9")) == "not-found"


def test_reading_back_an_update_counts_as_traffic(coordinator: Served) -> None:
    federation_id, (silo, _) = running(coordinator)
    deliver(silo, 1, values(1.0))
    path = f"/v1/federations/{federation_id}/clients/{silo.client_id}"
    before = coordinator.counted("tessera_bytes_down_total")
    down = len(silo.http.get(path + "/adapter").content)
    coordinator.admin.get(path + "/adapter")
    assert coordinator.admin.get(path).json()["bytes"]["down"] == down
    assert coordinator.counted("tessera_bytes_down_total") == before + down


def test_accepted_sketches_and_updates_are_stored(coordinator: Served, rows: Rows) -> None:
    federation_id, silos = running(coordinator)
    for number in (1, 2):
        one_round(coordinator, federation_id, silos, number, [1.0, 2.0])
    stored = rows(
        coordinator.database_url,
        f"SELECT vector FROM signatures WHERE federation_id = '{federation_id}' AND origin = 'update'",
    )
    assert [bytes(vector) for (vector,) in stored] == [SIGNATURE.tobytes()] * 4
    states = rows(
        coordinator.database_url, f"SELECT round_number FROM updates WHERE federation_id = '{federation_id}'"
    )
    assert sorted(states) == [(1,), (1,), (2,), (2,)]


class Slots(BoundedSemaphore):
    """Decode slots that record requests for a slot."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.was_requested = Event()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self.was_requested.set()
        return super().acquire(blocking, timeout)


def test_a_client_revoked_during_its_upload_is_refused(
    coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation_id, (silo, _) = running(coordinator)
    body = update_body(silo, 1, join(silo, 1), values(1.0))
    slots = Slots(1)
    monkeypatch.setattr(concurrency, "_DECODERS", slots)
    monkeypatch.setattr(concurrency, "_PATIENCE_SECONDS", 20.0)
    slots.acquire()
    slots.was_requested.clear()
    with ThreadPoolExecutor(1) as pool:
        uploading = pool.submit(put, silo, 1, body)
        assert slots.was_requested.wait(10)  # recognised, received, and waiting to be decoded
        revoked = coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}")
        slots.release()
        answer = uploading.result()
    assert revoked.status_code == 204
    assert (answer.status_code, slug(answer)) == (401, "key-revoked")
    assert show(coordinator, federation_id, 1)["counts"]["arrived"] == 0


def test_uploads_without_a_decode_slot_get_503(coordinator: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (silo, _) = running(coordinator)
    body = update_body(silo, 1, join(silo, 1), values(1.0))
    monkeypatch.setattr(concurrency, "_DECODERS", BoundedSemaphore(1))
    monkeypatch.setattr(concurrency, "_PATIENCE_SECONDS", 0.01)
    with concurrency._DECODERS:
        busy = put(silo, 1, body)
    assert (busy.status_code, slug(busy)) == (503, "busy")
    assert 1 <= int(busy.headers["retry-after"]) <= 5
    assert put(silo, 1, body).status_code == 201


def test_metrics_count_accepted_and_refused_updates(coordinator: Served) -> None:
    counted = coordinator.counted
    accepted = "tessera_updates_accepted_total"
    refused = 'tessera_updates_refused_total{reason="tensor-header"}'
    before = counted(accepted), counted(refused)
    _, (silo, _) = running(coordinator)
    body = update_body(silo, 1, join(silo, 1), values(1.0))
    put(silo, 1, b"x")
    put(silo, 1, body)
    put(silo, 1, body)
    assert (counted(accepted), counted(refused)) == (before[0] + 1, before[1] + 1)
