"""HEAD requests: the header fields of GET, without a body."""

from __future__ import annotations

import pytest

from tests.scene.coordinator import Served


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/page.js", "/v1/hello"])
def test_head_has_the_fields_of_get(coordinator: Served, path: str) -> None:
    with coordinator.http() as http:
        response, head = http.get(path), http.head(path)
        again = http.get(path)
    assert (response.status_code, head.status_code, again.status_code) == (200, 200, 200)
    assert head.content == b""
    ignored = {"date", "x-request-id"}
    assert {name: value for name, value in head.headers.items() if name not in ignored}.keys() == {
        name for name in response.headers if name not in ignored
    }
    assert head.headers["content-length"] == response.headers["content-length"]


def test_head_of_events_ends_at_once(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    answer = coordinator.admin.head(f"/v1/federations/{federation_id}/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert coordinator.admin.get("/v1/federations").status_code == 200


def test_head_is_refused_like_get(coordinator: Served) -> None:
    assert coordinator.http().head("/v1/federations").status_code == 401
    assert coordinator.http().head("/nowhere").status_code == 404
    assert coordinator.http().head("/v1/enrolments").status_code == 405


def test_head_is_not_in_the_document(coordinator: Served) -> None:
    paths = coordinator.http().get("/openapi.json").json()["paths"]
    assert not any("head" in methods for methods in paths.values())
