"""An OpenID Connect provider in a process of its own: oidc-provider-mock, which is Authlib's server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.scene.replica_processes import free_port
from tests.scene.waiting import wait_until

CLIENT = "tessera"
REDIRECT = "http://127.0.0.1/"
VERIFIER = "v" * 64
NONCE = "n" * 24


@dataclass(frozen=True)
class Provider:
    """A running provider; `http` calls it."""

    issuer: str
    http: httpx.Client

    def know(self, subject: str, **claims: object) -> None:
        """Store a person with these claims."""
        assert self.http.put(f"/users/{subject}", json=claims).is_success

    def code(self, subject: str, client: str = CLIENT, nonce: str = NONCE) -> str:
        """Sign a person in, as a browser does, and return the code of the redirect."""
        query = {
            "response_type": "code",
            "client_id": client,
            "redirect_uri": REDIRECT,
            "scope": "openid profile email",
            "state": "s",
            "nonce": nonce,
        }
        answer = self.http.post("/oauth2/authorize", params=query, data={"sub": subject})
        assert answer.status_code in (302, 303), answer.text
        return parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]

    def token(self, subject: str, client: str = CLIENT) -> str:
        """Return an ID token of a person for a client."""
        form = {
            "grant_type": "authorization_code",
            "code": self.code(subject, client),
            "redirect_uri": REDIRECT,
            "client_id": client,
        }
        answer = self.http.post("/oauth2/token", data=form, auth=(client, "any"))
        assert answer.is_success, answer.text
        return str(answer.json()["id_token"])


@contextmanager
def running_provider(*options: str) -> Iterator[Provider]:
    """Run a provider on a free port until the block ends."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *options]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        httpx.Client(base_url=issuer, trust_env=False, timeout=20) as http,
    ):
        try:
            wait_until(lambda: _answers(http), event="the identity provider")
            yield Provider(issuer, http)
        finally:
            process.terminate()


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/.well-known/openid-configuration").is_success
    except httpx.TransportError:
        return False
