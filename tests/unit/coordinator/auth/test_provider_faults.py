"""Identity providers that are slow or send invalid answers are retried later and hold no thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import pytest

from coordinator.auth import provider_requests
from coordinator.auth.oidc import IdentityProvider, provider_of
from coordinator.auth.provider_requests import ProviderDown
from coordinator.settings import Settings
from tests.scene.openid_provider import CLIENT
from tests.scene.trickling_server import trickling
from tests.scene.waiting import wait_until

METADATA = "/.well-known/openid-configuration"
TOKEN = jwt.encode({}, "k" * 32, "HS256", headers={"kid": "any"})
METADATA_OF_ITS_OWN = (
    '{"issuer": "ISSUER", "authorization_endpoint": "ISSUER/a", "token_endpoint": "ISSUER/t",'
    ' "jwks_uri": "ISSUER/keys"}'
)
KEYS = json.dumps({"keys": [{"kty": "oct", "kid": "a", "alg": "HS256", "k": "a2V5"}]})
WAITING = 8


def provider_at(issuer: str) -> IdentityProvider:
    provider = provider_of(Settings(oidc_issuer=issuer, oidc_client_id=CLIENT, oidc_roles="chiefs=admin"))
    assert provider is not None
    return provider


@contextmanager
def answering(metadata: str, keys: str = "") -> Iterator[tuple[str, list[str]]]:
    """Answer as a provider, `ISSUER` in its metadata; yield the issuer and the paths of the requests."""
    paths: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            body = (metadata.replace("ISSUER", issuer) if self.path == METADATA else keys).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield issuer, paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("part", ["headers", "body"])
def test_an_endless_answer_is_awaited_once(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(provider_requests, "TIMEOUT_SECONDS", 0.3)
    with trickling(part) as server:
        provider = provider_at(server.url)
        for _ in range(3):
            with pytest.raises(ProviderDown):
                provider.person(TOKEN)
        assert server.connections == 1


@pytest.mark.parametrize("body", ["no", "[]", '{"issuer": "https://another.example"}', "[" * 10_000, "\x00"])
def test_unusable_metadata_is_requested_once(body: str) -> None:
    with answering(body) as (issuer, paths):
        provider = provider_at(issuer)
        for _ in range(3):
            with pytest.raises(ProviderDown):
                provider.person(TOKEN)
    assert paths == [METADATA]


@pytest.mark.parametrize("keys", ['{"keys": [1]}', '{"keys": 5}', '{"keys": []}', '{"keys": [{}]}', "{}"])
def test_unusable_keys_are_an_error_of_the_provider(keys: str) -> None:
    with answering(METADATA_OF_ITS_OWN, keys) as (issuer, paths):
        provider = provider_at(issuer)
        for _ in range(3):
            with pytest.raises(ProviderDown):
                provider.person(TOKEN)
    assert paths == [METADATA, "/keys"]


def test_waiting_threads_per_provider_have_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_requests, "TIMEOUT_SECONDS", 3600.0)
    with trickling("headers") as server:
        provider = provider_at(server.url)
        with ThreadPoolExecutor(WAITING) as threads:
            waiting = [threads.submit(provider.person, TOKEN) for _ in range(WAITING)]
            wait_until(lambda: not provider._waiting._value, event="all of them")
            for _ in range(100):
                with pytest.raises(ProviderDown):
                    provider.person(TOKEN)
            assert not any(task.done() for task in waiting)
            server.close()
            for task in waiting:
                with pytest.raises(ProviderDown):
                    task.result(60)
        assert server.connections == 1


def test_known_keys_stay_valid_during_a_refresh() -> None:
    with answering(METADATA_OF_ITS_OWN, KEYS) as (issuer, paths):
        provider = provider_at(issuer)
        now = 0.0
        provider.clock = lambda: now
        key = provider._key({"kid": "a"})
        now = 610.0
        with provider._fetching():
            assert provider._key({"kid": "a"}) is key
        assert paths == [METADATA, "/keys"]
        assert provider._key({"kid": "a"}) is not key
        assert paths == [METADATA, "/keys", "/keys"]
