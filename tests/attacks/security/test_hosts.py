"""Host fields and paths: exactly one known name, one spelling."""

from __future__ import annotations

import pytest

from tests.scene.coordinator import ADMIN_TOKEN, Served, coordinator_fixture, slug

served = coordinator_fixture("sqlite", public_metrics=True)


def raw(served: Served, head: str) -> bytes:
    """Send a raw head; return all received bytes."""
    with served.line() as line:
        line.sendall(head.encode() + b"Connection: close\r\n\r\n")
        return line.makefile("rb").read()


@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: localhost\r\n"], ids=["none", "two"])
@pytest.mark.parametrize("path", ["/v1/federations", "/v1/hello", "/healthz"])
def test_exactly_one_host_is_required(served: Served, path: str, hosts: str) -> None:
    answer = raw(served, f"GET {path} HTTP/1.1\r\n{hosts}Authorization: Bearer {ADMIN_TOKEN}\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"malformed-request" in answer


@pytest.mark.parametrize("path", ["/v1/hello", "/metrics", "/openapi.json", "/", "/nowhere"])
def test_an_unknown_host_name_is_refused(served: Served, path: str) -> None:
    for client in (served.http(), served.admin):
        answer = client.get(path, headers={"Host": "rebound.example"})
        assert (answer.status_code, slug(answer)) == (421, "authority-unknown")
        assert "TESSERA_PUBLIC_NAMES" in answer.json()["detail"]


def test_a_probe_may_use_a_containers_address(served: Served) -> None:
    for path in ("/healthz", "/readyz"):
        assert served.http().get(path, headers={"Host": "172.18.0.4:8000"}).status_code == 200


@pytest.mark.parametrize("path", ["/%6detrics", "/v1%2fhello", "/v1%2Fhello", "/v1/%68ello", "/%68ealthz"])
def test_a_percent_encoded_path_is_not_found(served: Served, path: str) -> None:
    assert raw(served, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n").startswith(b"HTTP/1.1 404 ")
