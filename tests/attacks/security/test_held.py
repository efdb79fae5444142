"""Attacks over HTTP that fail: moved signatures, foreign files and modules, foreign web pages."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

import coordinator.dashboard
from schemas.wire.envelope import MEDIA_TYPE
from tests.attacks.hostile.scene import listen
from tests.scene.coordinator import ADMIN_TOKEN, Served, Silo, coordinator_fixture, slug
from tests.scene.rounds import join, running, url
from tests.scene.signed_requests import request_bytes, signed

PAGE = Path(coordinator.dashboard.__file__ or "").parent


served = coordinator_fixture(
    "sqlite", scope="module", tick_seconds=0.05, retry_seconds=0.1, polls_per_second=20
)


@pytest.fixture(scope="module")
def silo(served: Served) -> Silo:
    _, (first, _) = running(served)
    join(first, 1)
    return first


SIGNED = {
    "another method": lambda request: ("PUT", str(request.url), {}),
    "another order of the query": lambda request: ("GET", str(request.url).replace("a=1&b=2", "b=2&a=1"), {}),
    "a longer query": lambda request: ("GET", f"{request.url}&c=3", {}),
    "another spelling of the path": lambda request: ("GET", str(request.url).replace("/plan", "/%70lan"), {}),
    "another host": lambda request: ("GET", str(request.url), {"host": "example.org"}),
}


@pytest.mark.parametrize("case", SIGNED)
def test_a_signature_is_valid_for_its_request_only(served: Served, silo: Silo, case: str) -> None:
    request = signed(served, silo, "GET", f"/v1/federations/{silo.federation_id}/plan?a=1&b=2")
    method, target, fields = SIGNED[case](request)
    headers = {**dict(request.headers), **fields}
    moved = served.http().send(httpx.Request(method, target, headers=headers))
    assert moved.status_code in (401, 404, 405, 421)
    assert served.http().send(request).status_code == 200, "it was good where it was meant"


@pytest.mark.parametrize(("before", "behind"), [("http://example.org", ""), ("{url}", ""), ("", "#/v1/me")])
def test_a_request_target_without_path_is_refused(
    served: Served, silo: Silo, before: str, behind: str
) -> None:
    sent = request_bytes(signed(served, silo, "GET", "/v1/me"))
    plan = f"/v1/federations/{silo.federation_id}/plan"
    target = before.format(url=served.url) + plan + behind
    with served.line() as line:
        line.sendall(sent.replace(b"GET /v1/me ", f"GET {target} ".encode(), 1))
        assert listen(line).status == 400


def test_a_doubled_signature_input_is_refused(served: Served, silo: Silo) -> None:
    request = signed(served, silo, "GET", "/v1/me")
    doubled = [*request.headers.raw, (b"Signature-Input", request.headers["signature-input"].encode())]
    answer = served.http().send(httpx.Request("GET", request.url, headers=doubled))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "name", ["../migrate", "..migrate", "os", "coordinator.db.migrate", "__init__", "battery\x00"]
)
def test_a_module_as_strategy_name_is_refused(served: Served, name: str) -> None:
    answer = served.admin.post("/v1/federations", json={"name": "x", "strategy": {"name": name}})
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/docs/static/../app.py",
        "/docs/static/%2e%2e/app.py",
        "/docs/static/..%2fapp.py",
        "/docs/static/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/docs/static//etc/passwd",
        "/docs/static/..\\app.py",
    ],
)
def test_a_static_path_reaches_no_other_file(served: Served, path: str) -> None:
    with served.line() as line:
        host = served.url.removeprefix("http://")
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while piece := line.recv(65536):
            received += piece
    assert received.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"root:" not in received


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=1e9", "after=' OR 1=1 --", "after=%00"])
def test_invalid_page_parameters_are_refused_or_ignored(served: Served, silo: Silo, query: str) -> None:
    for path in (f"/v1/federations/{silo.federation_id}/clients", "/v1/federations"):
        answer = served.admin.get(f"{path}?{query}")
        assert answer.status_code < 500, answer.text
        assert answer.status_code == 422 or not answer.json()["items"] or "limit" not in query
    assert served.admin.get(f"/v1/federations/{silo.federation_id}/clients").json()["items"]


@pytest.mark.parametrize(
    "field",
    ["bytes=0-0,2-3", "bytes=-0", "bytes=5-2", f"bytes={2**70}-", "bytes=a-b", "lines=0-1", "bytes=--1"],
)
def test_a_range_request_shows_only_the_weights(served: Served, silo: Silo, field: str) -> None:
    whole = silo.http.get(url(silo, 1, "/weights")).content
    answer = silo.http.get(url(silo, 1, "/weights"), headers={"Range": field})
    assert answer.status_code in (200, 416)
    assert answer.status_code == 416 or answer.content == whole


@pytest.mark.parametrize("accept", ["application/x-pickle", "*/*;q=0", "text/html", "x" * 4000, "../../etc"])
def test_the_accept_field_cannot_change_the_media_type(served: Served, silo: Silo, accept: str) -> None:
    answer = silo.http.get(url(silo, 1, "/weights"), headers={"Accept": accept})
    assert answer.status_code in (200, 406)
    assert answer.is_error or answer.headers["content-type"].startswith(MEDIA_TYPE.partition(";")[0])


def test_a_foreign_origin_receives_no_access(served: Served) -> None:
    foreign = {"Origin": "https://example.org", "Content-Type": "text/plain"}
    posted = served.http().post("/v1/federations", content=b"{}", headers=foreign)
    assert (posted.status_code, slug(posted)) == (401, "auth-missing")
    preflight = served.http().options(
        "/v1/federations", headers=foreign | {"Access-Control-Request-Method": "POST"}
    )
    for answer in (posted, preflight, served.http(ADMIN_TOKEN).get("/v1/federations", headers=foreign)):
        fields = {name.lower() for name in answer.headers}
        assert not any(name.startswith("access-control-") for name in fields)
        assert "set-cookie" not in fields


def test_the_page_forbids_framing_and_unsafe_scripts(served: Served) -> None:
    answer = served.http().get("/")
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    script = "".join(file.read_text("utf-8") for file in sorted(PAGE.glob("page*.js")))
    unsafe = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|\.cookie"
    )
    assert not re.search(unsafe, script)
    assert "sessionStorage" in script
