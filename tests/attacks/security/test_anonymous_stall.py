"""Bounded cost of anonymous requests, and other requests that do not wait for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI
from pydantic import ValidationError

from coordinator import workers
from coordinator.auth import failure_limit
from coordinator.enrolment import failure_delay
from coordinator.http import json_body
from coordinator.http.json_body import MAX_FAULTS
from schemas.messages.enrolment import EnrolmentRequest
from tests.scene.coordinator import PROFILE, Served, coordinator_fixture, enrolment, slug

JSON = {"Content-Type": "application/json"}
LIMIT = 5
MANY_ROLES = {"token": "a", "name": "b", "profile": PROFILE | {"roles": [0] * 5000}}
MANY_SHAPES = {
    "token": "a",
    "name": "b",
    "profile": PROFILE | {"shapes": {f"r{i}": "x" for i in range(800)}},
}


served = coordinator_fixture("each", failed_enrolments_per_minute=LIMIT)


@pytest.mark.parametrize("message", [MANY_ROLES, MANY_SHAPES], ids=["roles", "shapes"])
def test_validation_stops_after_two_faults(message: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        EnrolmentRequest.model_validate_json(json.dumps(message), strict=True)
    assert caught.value.error_count() <= 2


def test_many_faults_are_not_listed(coordinator: Served) -> None:
    anchors = {"anchors": [{} for _ in range(200)]}
    federation_id = coordinator.federation()
    refused = coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=anchors)
    assert (refused.status_code, slug(refused)) == (422, "validation")
    assert "errors" not in refused.json()
    assert str(MAX_FAULTS) in refused.json()["detail"]


def test_long_bodies_are_parsed_outside_the_server_thread(
    coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    parse = json_body.parse

    def noting(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*arguments, **named)

    monkeypatch.setattr(json_body, "parse", noting)
    for message in (MANY_ROLES, {"token": "a"}):
        assert coordinator.http().post("/v1/enrolments", json=message).status_code == 422
    assert [name == "coordinator" for name in threads] == [False, True]


def test_malformed_enrolments_are_limited_by_address(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    token = served.enrolment_token(served.federation(), "a")
    good = enrolment(served.http(), token, "a", Ed25519PrivateKey.generate())
    noted: list[str] = []
    note = failure_limit.count_failure

    def noting(*arguments: Any) -> None:
        noted.append(arguments[1])
        note(*arguments)

    monkeypatch.setattr(failure_limit, "count_failure", noting)
    monkeypatch.setattr(failure_delay, "DELAY_SECONDS", 0.0)
    bodies = [b"{", json.dumps(MANY_ROLES).encode()] * LIMIT
    answers = [served.http().post("/v1/enrolments", content=body, headers=JSON) for body in bodies]
    assert {answer.status_code for answer in answers[:LIMIT]} == {400, 422}
    assert {answer.status_code for answer in answers[LIMIT:]} == {429}
    assert all(1 <= int(answer.headers["retry-after"]) <= 66 for answer in answers[LIMIT:])
    assert len(noted) == LIMIT + 1, "then this process knows"
    wrong = served.http().post("/v1/enrolments", json=good | {"token": "tsr1_guess"})
    assert wrong.status_code == 429, "they count with those of another token"
    assert served.http().post("/v1/enrolments", json=good).status_code == 201


def test_expired_failures_are_deleted_by_the_clean_up(
    served: Served,
    rows: Callable[[str, str], list[tuple[Any, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert served.http().post("/v1/enrolments", content=b"{", headers=JSON).status_code == 400
    database = served._server._app.state.database
    ticking = served._server._app.state.ticker
    monkeypatch.setattr(failure_limit, "_WINDOW", -failure_limit._WINDOW)
    monkeypatch.setattr(workers, "_COLLECT_EVERY_SECONDS", 600.0)
    ticking._next_collection = 0.0
    ticking._clean_up()
    assert failure_limit.delete_expired(database) == 0
    assert rows(served.database_url, "SELECT count(*) FROM failed_enrolments") == [(0,)]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/hello?" + "&".join(["a"] * 1100), {}, 414),
        ("/v1/" + "%25" * 700, {}, 414),
        ("/v1/hello", {f"A{i}": "b" for i in range(100)}, 431),
    ],
    ids=["query", "path", "fields"],
)
def test_long_targets_and_many_header_fields_are_refused(
    coordinator: Served, path: str, headers: dict[str, str], status: int
) -> None:
    assert coordinator.http().get(path, headers=headers).status_code == status


def test_the_openapi_document_is_written_once(coordinator: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first = coordinator.http().get("/openapi.json")
    assert first.json()["info"]["title"] == "Tessera"

    def never(_: FastAPI) -> dict[str, Any]:
        raise AssertionError("made again")

    monkeypatch.setattr(coordinator._server._app, "openapi", never)
    assert coordinator.http().get("/openapi.json").content == first.content
