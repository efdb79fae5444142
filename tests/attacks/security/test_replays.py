"""Replays of signed requests: refused, and without cost for the client."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from coordinator.auth.nonces import MAX_READS_PER_KEY, ReadNonces
from coordinator.errors import RequestReplayed
from schemas.identity.signed_requests import ACCEPTED_SECONDS
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import PLAN, one_round, running, scored, try_join, url
from tests.scene.signed_requests import send, signed

JSON = {"Content-Type": "application/json"}


def scores(exact_match: float) -> bytes:
    return json.dumps(scored({"loss": 1.0, "exact_match": exact_match})).encode()


def stored_score(served: Served, silo: Silo) -> float:
    shown = served.admin.get(url(silo, 1)).json()["clients"]
    (stored,) = [c["scores"] for c in shown if c["client_id"] == silo.client_id]
    return float(stored["trained"]["exact_match"]["value"])


def test_a_replayed_put_cannot_undo_a_newer_one(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator)
    assert try_join(silo, 1).status_code == 200
    path = url(silo, 1, "/scores")
    old = signed(coordinator, silo, "PUT", path, scores(0.125), **JSON)
    assert send(coordinator, old) == (204, "")
    assert silo.http.put(path, content=scores(0.75), headers=JSON).status_code == 204
    assert send(coordinator, old) == (401, "replayed")
    assert stored_score(coordinator, silo) == 0.75
    assert silo.http.put(path, content=scores(0.25), headers=JSON).status_code == 204, "its own retry counts"
    assert silo.http.put(path, content=scores(0.25), headers=JSON).status_code == 204


def test_a_replayed_put_is_refused_before_its_body(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator)
    assert try_join(silo, 1).status_code == 200
    request = signed(coordinator, silo, "PUT", url(silo, 1, "/scores"), scores(0.5), **JSON)
    assert send(coordinator, request) == (204, "")
    altered = httpx.Request("PUT", request.url, headers=request.headers, content=b"{" * len(request.content))
    assert send(coordinator, altered) == (401, "replayed")


def test_a_replayed_download_counts_no_bytes(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0])
    silo = silos[0]
    assert try_join(silo, 2).status_code == 200
    bytes_down: list[int] = []
    for path in (
        url(silo, 2, "/weights"),
        f"/v1/federations/{federation_id}/clients/{silo.client_id}/adapter",
    ):
        request = signed(coordinator, silo, "GET", path)
        assert send(coordinator, request) == (200, "")
        counted = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{silo.client_id}").json()[
            "bytes"
        ]
        assert send(coordinator, request) == (401, "replayed")
        again = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{silo.client_id}").json()[
            "bytes"
        ]
        assert again == counted
        bytes_down.append(counted["down"])
    assert 0 < bytes_down[0] < bytes_down[1]


def test_a_download_replayed_to_another_replica_is_refused(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    database = fresh_postgres()
    first, second = serve(database), serve(database)
    _, (silo, _) = running(first)
    assert try_join(silo, 1).status_code == 200
    request = signed(first, silo, "GET", url(silo, 1, "/weights"))
    assert send(first, request) == (200, "")
    replayed = httpx.Request("GET", second.url + request.url.path, headers=request.headers)
    assert send(second, replayed) == (401, "replayed")


def test_replayed_polls_do_not_use_the_clients_limit(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), polls_per_second=0.01)
    _, (silo, _) = running(served)
    request = signed(served, silo, "GET", url(silo, 1).replace("/1", "/current"))
    assert send(served, request) == (200, "")
    assert [send(served, request) for _ in range(14)] == [(401, "replayed")] * 14
    assert silo.http.get(request.url.path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/me", "/v1/federations/{fid}/plan", "/v1/federations/{fid}/rounds"])
def test_a_replayed_read_is_refused(coordinator: Served, path: str) -> None:
    federation_id = coordinator.federation(**PLAN)
    silo = coordinator.enrol(federation_id, "a")
    request = signed(coordinator, silo, "GET", path.format(fid=federation_id))
    assert send(coordinator, request) == (200, "")
    assert send(coordinator, request) == (401, "replayed")


@pytest.mark.parametrize(("name", "value"), [("Prefer", "wait=1"), ("Range", "bytes=0-9")])
def test_prefer_and_range_must_be_signed(coordinator: Served, name: str, value: str) -> None:
    _, (silo, _) = running(coordinator)
    assert try_join(silo, 1).status_code == 200
    path = url(silo, 1, "/weights")
    added = signed(coordinator, silo, "GET", path)
    added.headers[name] = value
    assert send(coordinator, added) == (401, "signature-profile")
    removed = signed(coordinator, silo, "GET", path, **{name: value})
    del removed.headers[name]
    assert send(coordinator, removed) == (401, "signature-profile")
    changed = signed(coordinator, silo, "GET", path, **{name: value})
    changed.headers[name] = value + "0"
    assert send(coordinator, changed) == (401, "signature-invalid")
    assert send(coordinator, signed(coordinator, silo, "GET", path, **{name: value}))[0] in (200, 206)


def test_read_nonces_are_kept_while_signatures_are_timely() -> None:
    now = [0.0]
    reads = ReadNonces(clock=lambda: now[0])
    reads.use("a", "x")
    reads.use("b", "x")
    now[0] = float(ACCEPTED_SECONDS)
    with pytest.raises(RequestReplayed):
        reads.use("a", "x")
    now[0] += 60
    reads.use("b", "y")
    assert len(reads) == 1, "what cannot be timely any more is forgotten, its key as well"


def test_a_busy_key_evicts_only_its_own_nonces() -> None:
    reads = ReadNonces(clock=lambda: 0.0)
    reads.use("victim", "x")
    for number in range(2 * MAX_READS_PER_KEY):
        reads.use("busy", str(number))
    assert len(reads) == MAX_READS_PER_KEY + 1
    with pytest.raises(RequestReplayed):
        reads.use("victim", "x")
