"""JSON bodies over HTTP: values of other types, sizes and encodings are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.scene.coordinator import Served, slug
from tests.scene.waiting import wait_until

PLAN = {"name": "x", "strategy": {"name": "fedavg"}}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("value", ["true", '"3"', "3.5", "null"])
def test_integers_refuse_other_json_types(coordinator: Served, value: str) -> None:
    body = f'{{"name": "x", "strategy": {{"name": "fedavg"}}, "rounds": {{"total": {value}}}}}'
    refused = coordinator.admin.post("/v1/federations", content=body, headers=JSON)
    assert (refused.status_code, refused.json()["field"]) == (422, "rounds.total")


def test_other_media_types_and_encodings_are_refused(coordinator: Served) -> None:
    body = json.dumps(PLAN).encode()
    for headers, expected in [
        ({"Content-Type": "text/plain"}, "media-type"),
        ({}, "media-type"),
        (JSON | {"Content-Encoding": "gzip"}, "content-encoding"),
    ]:
        refused = coordinator.admin.post("/v1/federations", content=body, headers=headers)
        assert (refused.status_code, slug(refused)) == (415, expected)


def test_an_oversized_json_body_is_refused(coordinator: Served) -> None:
    large = b'"' + b"x" * 2**16 + b'"'

    def chunks() -> Iterator[bytes]:
        yield from (large[i : i + 4096] for i in range(0, len(large), 4096))

    announced = coordinator.admin.post("/v1/federations", content=large, headers=JSON)
    chunked = coordinator.admin.post("/v1/federations", content=chunks(), headers=JSON)
    assert (announced.status_code, slug(announced)) == (413, "body-too-large")
    assert (chunked.status_code, slug(chunked)) == (413, "body-too-large")
    assert chunked.headers["connection"] == "close"
    assert coordinator.admin.get("/v1/federations").status_code == 200


def test_a_disconnect_inside_a_json_body_gets_400(coordinator: Served) -> None:
    head = b"POST /v1/enrolments HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
    with coordinator.line() as line:
        line.sendall(head + b'Content-Type: application/json\r\n\r\n{"token": ')
    answered = wait_until(lambda: _answered(coordinator, "/v1/enrolments") & {"400", "500"})
    assert answered == {"400"}


def _answered(served: Served, route: str) -> set[str]:
    """Return the statuses of a route so far."""
    lines = served.admin.get("/metrics").text.splitlines()
    return {line.split('status="')[1][:3] for line in lines if f'route="{route}"' in line}
