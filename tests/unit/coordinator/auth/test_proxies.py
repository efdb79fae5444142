"""Changes of signed requests by proxies: accepted if equivalent, or refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from client_agent.errors import AddressMismatch, AgentError
from client_agent.identity.membership import enrol
from client_agent.transport.client import CoordinatorApi
from coordinator.addresses import SERVED
from coordinator.app import ROUTERS
from coordinator.settings import Settings
from schemas.messages.enrolment import Profile
from tests.scene.coordinator import PROFILE, SIGNING_KEY, Served, Silo, start

HOST = "tessera.example.org"
URL = f"https://{HOST}/tessera"


@dataclass(frozen=True)
class Forwarded:
    """A forwarded request; `target` is path and query."""

    target: str
    fields: tuple[tuple[str, str], ...]

    @property
    def host(self) -> str:
        return dict(self.fields)["host"]

    def with_field(self, name: str, value: str) -> Forwarded:
        return replace(self, fields=(*self.without(name).fields, (name, value)))

    def without(self, name: str) -> Forwarded:
        return replace(self, fields=tuple(pair for pair in self.fields if pair[0] != name))

    def edited(self, old: str, new: str) -> Forwarded:
        return replace(self, target=self.target.replace(old, new, 1))


Change = Callable[[Forwarded], Forwarded]


class Proxy(httpx.HTTPTransport):
    """Passes requests on to a coordinator over plain HTTP/1.1, after a change."""

    def __init__(self, served: Served, change: Change) -> None:
        super().__init__()
        self._upstream, self._change = httpx.URL(served.url), change
        self.paths: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        fields = tuple((name.lower(), value) for name, value in request.headers.items())
        sent = self._change(Forwarded(request.url.raw_path.decode(), fields))
        forwarded = httpx.Request(
            request.method,
            self._upstream,
            headers=sent.fields,
            content=request.read(),
            extensions=request.extensions | {"target": sent.target.encode()},
        )
        answer = super().handle_request(forwarded)
        answer.read()
        return answer


@pytest.fixture(scope="module")
def served(fresh_database: Callable[[str], str]) -> Iterator[dict[str, Served]]:
    """Coordinators by root path."""
    names = f"{HOST},127.0.0.1"
    running = {
        path: start(fresh_database("sqlite"), root_path=path, public_names=names) for path in ("", "/tessera")
    }
    yield running
    for coordinator in running.values():
        coordinator.stop()


@pytest.fixture(scope="module")
def silos(served: dict[str, Served]) -> dict[str, Silo]:
    return {path: running.enrol(running.federation(), "aster") for path, running in served.items()}


def connect(url: str, transport: httpx.BaseTransport, silo: Silo | None = None) -> CoordinatorApi:
    key = silo.key if silo is not None else None
    return CoordinatorApi(url, key=key, deadline_seconds=0, transport=transport)


def unchanged(sent: Forwarded) -> Forwarded:
    return sent


def stripped(sent: Forwarded) -> Forwarded:
    """Remove the first segment, as nginx does for a `proxy_pass` with a path."""
    return replace(sent, target=sent.target.removeprefix("/tessera"))


def with_host(name: str) -> Change:
    return lambda sent: stripped(sent).with_field("host", name)


ACCEPTED: dict[str, tuple[str, str, Change]] = {
    "no proxy": (f"http://{HOST}", "", unchanged),
    "root path removed": (URL, "/tessera", stripped),
    "root path passed on": (URL, "/tessera", unchanged),
    "trailing slash of the URL": (f"{URL}/", "/tessera", stripped),
    "another scheme": (URL.replace("https", "http"), "/tessera", stripped),
    "host in upper case": (URL, "/tessera", with_host(HOST.upper())),
    "URL in upper case": (URL.replace(HOST, HOST.upper()), "/tessera", stripped),
    "default port of the URL": (URL.replace(HOST, f"{HOST}:443"), "/tessera", stripped),
    "default port added": (URL, "/tessera", with_host(f"{HOST}:443")),
    "another port": (URL.replace(HOST, f"{HOST}:8443"), "/tessera", stripped),
    "HTTP/2 before the proxy": (  # Host is made of :authority and comes last, and a Via field is added
        URL,
        "/tessera",
        lambda sent: stripped(sent).with_field("via", "2.0 proxy").with_field("host", sent.host),
    ),
}


@pytest.mark.parametrize(("url", "root_path", "change"), ACCEPTED.values(), ids=ACCEPTED)
def test_equivalent_requests_are_accepted(
    served: dict[str, Served], silos: dict[str, Silo], url: str, root_path: str, change: Change
) -> None:
    proxy = Proxy(served[root_path], change)
    with connect(url, proxy, silos[root_path]) as api:
        assert api.hello().root_path == root_path
        assert api.me().client_id == silos[root_path].client_id


MISMATCHES: dict[str, tuple[str, str, Change, tuple[str, ...]]] = {
    "path configured on one side: the coordinator": (
        f"https://{HOST}",
        "/tessera",
        unchanged,
        ("path is empty", "announces /tessera", "set `url` to that", f"https://{HOST}/tessera"),
    ),
    "path configured on one side: the client": (
        URL,
        "",
        stripped,
        ("path is /tessera", "announces none", "set TESSERA_ROOT_PATH to /tessera"),
    ),
    "encoded character in the URL's path": (
        f"https://{HOST}/tesser%61",
        "/tessera",
        lambda sent: sent.edited("/tesser%61", ""),
        ("/tesser%61", "announces /tessera"),
    ),
    "two slashes that the proxy merges": (
        f"https://{HOST}//tessera",
        "/tessera",
        lambda sent: sent.edited("//tessera", ""),
        ("path is //tessera", "announces /tessera"),
    ),
    "path below the path": (
        f"{URL}/tessera",
        "/tessera",
        stripped,
        ("path is /tessera/tessera", "announces /tessera"),
    ),
    "host of the upstream": (
        URL,
        "/tessera",
        with_host("127.0.0.1:8000"),
        (HOST, "127.0.0.1:8000", "$http_host"),
    ),
    "host without its port": (
        URL.replace(HOST, f"{HOST}:8443"),
        "/tessera",
        with_host(HOST),
        (f"host is {HOST}:8443", f"for {HOST}.", "proxy_set_header Host $http_host"),
    ),
}


@pytest.mark.parametrize(("url", "root_path", "change", "parts"), MISMATCHES.values(), ids=MISMATCHES)
def test_an_address_mismatch_is_found_before_enrolment(
    served: dict[str, Served],
    silos: dict[str, Silo],
    url: str,
    root_path: str,
    change: Change,
    parts: tuple[str, ...],
    tmp_path: Path,
) -> None:
    running, proxy = served[root_path], Proxy(served[root_path], change)
    token = running.enrolment_token(silos[root_path].federation_id, f"silo {tmp_path.name}")
    profile = Profile.model_validate(PROFILE)
    with connect(url, proxy) as api, pytest.raises(AddressMismatch) as before:
        enrol(api, tmp_path, token=token, name="silo", profile=profile)
    assert not any(path.endswith("/enrolments") for path in proxy.paths)
    # A client that enrolled before the proxy was changed learns the same.
    with connect(url, proxy, silos[root_path]) as api, pytest.raises(AddressMismatch) as later:
        api.me()
    assert str(later.value) == str(before.value)
    assert all(part in str(before.value) for part in (*parts, url.rstrip("/"))), before.value


REFUSED: dict[str, tuple[Change, str]] = {
    "order of the query": (
        lambda sent: sent.edited("after=3&limit=1", "limit=1&after=3"),
        "no proxy may change host or query",
    ),
    "encoding of the query": (lambda sent: sent.edited("after=3", "after=%33"), "no proxy may change host"),
    "encoded character in the path": (lambda sent: sent.edited("roster", "r%6Fster"), "send it unencoded"),
    "two slashes": (lambda sent: sent.edited("/roster", "//roster"), "send it without"),
    "trailing slash": (lambda sent: sent.edited("roster", "roster/"), "send it without"),
    "Prefer removed": (lambda sent: sent.without("prefer"), 'cover "prefer" exactly when'),
    "unknown host": (with_host("proxy.internal"), "TESSERA_PUBLIC_NAMES"),
}


@pytest.mark.parametrize(("change", "remedy"), REFUSED.values(), ids=REFUSED)
def test_refusals_of_changed_requests_name_the_remedy(
    served: dict[str, Served], silos: dict[str, Silo], change: Change, remedy: str
) -> None:
    silo, proxy = silos["/tessera"], Proxy(served["/tessera"], lambda sent: change(stripped(sent)))
    path = f"/v1/federations/{silo.federation_id}/roster?after=3&limit=1"
    with connect(URL, proxy, silo) as api, pytest.raises(AgentError) as refusal:
        api.call("GET", path, headers={"Prefer": "wait=0"})
    assert remedy in str(refusal.value)


def test_redirects_name_the_address_to_set() -> None:
    moved = httpx.MockTransport(lambda _: httpx.Response(301, headers={"Location": f"{URL}/v1/hello"}))
    with connect(URL, moved) as api, pytest.raises(AgentError, match=f"`url` to the address that {URL}/v1"):
        api.hello()


def test_page_and_documents_use_the_root_path(served: dict[str, Served]) -> None:
    http = served["/tessera"].http()
    redirect = http.get("/tessera")
    assert (redirect.status_code, redirect.headers["location"]) == (308, "/tessera/")
    assert http.get("/tessera/openapi.json").json()["servers"] == [{"url": "/tessera"}]
    assert "servers" not in served[""].http().get("/openapi.json").json()
    for path in ("/", "/page.js", "/docs", "/docs/start.js", "/healthz"):
        passed_on, removed = http.get(f"/tessera{path}"), http.get(path)
        assert passed_on.status_code == 200
        assert passed_on.content == removed.content
        assert b'="/' not in passed_on.content, "a link leaves the root path"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("/", ""),
        ("/tessera", "/tessera"),
        ("/tessera/", "/tessera"),
        ("/a/b-c_d.e~f", "/a/b-c_d.e~f"),
    ],
)
def test_root_paths_are_normalised(text: str, normal: str) -> None:
    assert Settings(signing_key=SIGNING_KEY, root_path=text).root_path == normal


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tessera", "begins with a slash"),
        ("https://tessera.example.org/tessera", "only the path"),
        ("/a//b", "single slashes"),
        ("/a/../b", "segments"),
        ("/tesser%61", "letters"),
        ("/tesséra", "letters"),
        ("/v1", "choose another"),
        ("/docs/tessera", "choose another"),
    ],
)
def test_unusable_root_paths_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings(root_path=text)


def test_reserved_root_paths_match_the_routes() -> None:
    first = {route.path.split("/")[1] for router in ROUTERS for route in router.routes}  # type: ignore[attr-defined]
    assert {segment for segment in first if segment and "{" not in segment} == SERVED
