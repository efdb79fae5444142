"""A coordinator in a thread, and its use over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from client_agent.transport.request_signing import SignedRequests
from coordinator.app import create_app
from coordinator.db.engine import Database
from coordinator.db.federation_lock import lock_federation
from coordinator.db.ids import new_id
from coordinator.enrolment.routes import admit_member
from coordinator.enrolment.store import add_enrolment_token
from coordinator.server import Server
from coordinator.settings import Settings
from schemas.identity.documents import sign
from schemas.identity.enrolment_token import read
from schemas.identity.keys import name_of
from schemas.messages.enrolment import EnrolmentRequest, EnrolmentTokenRequest, enrolment_statement

ADMIN_TOKEN = "admin-token-of-the-tests"
SIGNING_KEY = "c2lnbmluZy1rZXktb2YtdGhlLXRlc3RzLTMyLWJ5dGU"

_ROUND_STATE = text("SELECT state FROM rounds WHERE federation_id = :federation_id AND number = :number")
_WITH_OPEN_ROUNDS = text("SELECT federation_id FROM rounds WHERE state NOT IN ('published', 'abandoned')")

PROFILE: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "base_model": "tiny-s-3f0c9a1b2c3d",
    "hidden_size": 96,
    "layers": 4,
    "agent_version": "0.2.0",
    "protocol_version": 2,
    "capabilities": ["secure-sum-3"],
}


@dataclass
class Silo:
    """An enrolled client with its key and an HTTP client that signs with it."""

    client_id: str
    federation_id: str
    key: Ed25519PrivateKey
    http: httpx.Client


@dataclass
class Served:
    """A running coordinator; `admin` calls it as an admin."""

    url: str
    database_url: str
    _server: Server
    _thread: threading.Thread
    _opened: list[httpx.Client] = field(default_factory=list)
    _admin: httpx.Client | None = None
    _database: Database | None = None

    def http(self, token: str | None = None) -> httpx.Client:
        """Open an HTTP client, with a bearer token or without."""
        return self._open(headers={"Authorization": f"Bearer {token}"} if token else {})

    def signing(self, key: Ed25519PrivateKey) -> httpx.Client:
        """Open an HTTP client that signs its requests."""
        return self._open(auth=SignedRequests(key))

    def _open(self, **options: Any) -> httpx.Client:
        # This is plain HTTP on loopback: neither certificates nor proxies need to be read.
        opened = httpx.Client(base_url=self.url, timeout=30, verify=False, trust_env=False, **options)
        self._opened.append(opened)
        return opened

    def line(self, seconds: float = 10.0) -> socket.socket:
        """Open a raw connection, for requests that no HTTP library sends."""
        place = httpx.URL(self.url)
        return socket.create_connection((place.host, place.port or 80), timeout=seconds)

    @property
    def admin(self) -> httpx.Client:
        """Call as an admin."""
        if self._admin is None:
            self._admin = self.http(ADMIN_TOKEN)
        return self._admin

    def person(self, role: str) -> httpx.Client:
        """Call as a new person of a role."""
        created = self.admin.post("/v1/tokens", json={"role": role, "name": f"the {role}"})
        assert created.status_code == 201, created.text
        return self.http(created.json()["token"])

    def federation(self, **plan: Any) -> str:
        """Create a federation; return its id."""
        body = {"name": "clinics", "strategy": {"name": "fedavg"}} | plan
        created = self.admin.post("/v1/federations", json=body)
        assert created.status_code == 201, created.text
        return str(created.json()["id"])

    def start_federation(self, federation_id: str) -> None:
        """Start a federation; its first round opens."""
        answer = self.admin.post(f"/v1/federations/{federation_id}/start")
        assert answer.status_code == 200, answer.text

    def enrolment_token(self, federation_id: str, name: str, **request: Any) -> str:
        """Make a one-time token."""
        created = self.admin.post(
            f"/v1/federations/{federation_id}/enrolment-tokens", json={"client_name": name} | request
        )
        assert created.status_code == 201, created.text
        return str(created.json()["token"])

    def enrol(
        self, federation_id: str, name: str, *, organisation: str | None = None, **profile: Any
    ) -> Silo:
        """Enrol a client with a new key directly in the database, which is faster than HTTP."""
        key, token_id = Ed25519PrivateKey.generate(), new_id("enr")
        token_request = EnrolmentTokenRequest(client_name=name, organisation=organisation)
        shown = {"public_key": name_of(key), "nonce": "", "proof": ""}
        request = EnrolmentRequest(token="", name=name, profile=PROFILE | profile, **shown)
        with self.database.write() as session:
            lock_federation(session, federation_id)
            token = add_enrolment_token(session, token_id, federation_id, token_request, digest=token_id)
            client = admit_member(session, token, request, None)
        return Silo(client.id, federation_id, key, self.signing(key))

    def enrol_over_http(self, federation_id: str, name: str, **profile: Any) -> Silo:
        """Enrol a client as an agent does, with a token of an admin."""
        key, token = Ed25519PrivateKey.generate(), self.enrolment_token(federation_id, name)
        answer = self.try_enrol(token, name, key, **profile)
        assert answer.status_code == 201, answer.text
        return Silo(answer.json()["client_id"], federation_id, key, self.signing(key))

    def try_enrol(
        self, token: str, name: str, key: Ed25519PrivateKey | None = None, **profile: Any
    ) -> httpx.Response:
        """Request an enrolment, with a new key unless a key is passed."""
        anonymous = self.http()
        request = enrolment(anonymous, token, name, key or Ed25519PrivateKey.generate(), **profile)
        return anonymous.post("/v1/enrolments", json=request)

    def counted(self, series: str) -> float:
        """Read one series of the metrics; 0 if it is missing."""
        lines = self.admin.get("/metrics").text.splitlines()
        values = [line.split()[-1] for line in lines if line.startswith(series + " ")]
        return float(values[0]) if values else 0.0

    def with_open_rounds(self) -> set[str]:
        """Return the federations whose open rounds a coordinator checks at every tick."""
        with self.database.autocommit() as connection:
            return {federation_id for (federation_id,) in connection.execute(_WITH_OPEN_ROUNDS)}

    def rounds(self, federation_id: str) -> list[dict[str, Any]]:
        """Return all rounds of a federation as an admin sees them, in order."""
        path = f"/v1/federations/{federation_id}/rounds"
        numbers = [shown["round"] for shown in self.admin.get(path).json()["items"]]
        return [self.admin.get(f"{path}/{number}").json() for number in sorted(numbers)]

    def round_state(self, federation_id: str, number: int) -> str | None:
        """Read the state of a round from the database; None if the round does not exist."""
        with self.database.autocommit() as connection:
            state: str | None = connection.scalar(
                _ROUND_STATE, {"federation_id": federation_id, "number": number}
            )
            return state

    @property
    def database(self) -> Database:
        """The coordinator's database."""
        if self._database is None:
            self._database = Database(self.database_url)
        return self._database

    def stop(self) -> None:
        """Stop as on SIGTERM."""
        for opened in self._opened:
            opened.close()
        if self._database is not None:
            self._database.close()
        self._server.handle_exit(15, None)
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the coordinator did not stop"


def enrolment(
    http: httpx.Client, token: str, name: str, key: Ed25519PrivateKey, **profile: Any
) -> dict[str, Any]:
    """Return the request that enrols a new key."""
    text, hello = read(token), http.get("/v1/hello").json()
    statement = enrolment_statement(
        server=text.server, token=text.id, public_key=name_of(key), nonce=hello["nonce"]
    )
    proof = sign("tessera-enrolment-v1", statement, key)
    shown = {"public_key": statement["public_key"], "nonce": statement["nonce"], "proof": proof}
    return {"token": token, "name": name, "profile": PROFILE | profile} | shown


def start(database_url: str, *, traces: Any = None, **settings: Any) -> Served:
    """Start a coordinator on a free loopback port; `traces` is OpenTelemetry's provider."""
    values: dict[str, Any] = {
        "admin_token": ADMIN_TOKEN,
        "signing_key": SIGNING_KEY,
        "failed_enrolments_per_minute": 1000,
        "failed_tokens_per_minute": 1000,
        "port": 0,
        "database_url": database_url,
    } | settings
    configured = Settings(**values)
    server = Server(create_app(configured, traces=traces), configured)
    thread = threading.Thread(target=server.run, name="coordinator", daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the coordinator did not start")
        time.sleep(0.01)
    # The first request builds the routes, which two coordinators of one process cannot do at once.
    httpx.get(f"{server.url}/nowhere", timeout=30, verify=False)
    return Served(server.url, database_url, server, thread)


def coordinator_fixture(
    database: Literal["sqlite", "each"], *, scope: Any = "function", **settings: Any
) -> Any:
    """Return a fixture of a coordinator of its own: `served = coordinator_fixture("sqlite", tick_seconds=1)`.

    With `each` database a test runs on SQLite and on PostgreSQL. It stops at the end of the scope.
    """

    def run(database_url: str) -> Iterator[Served]:
        served = start(database_url, **settings)
        yield served
        served.stop()

    if database == "each":

        @pytest.fixture(scope=scope)
        def on_each_database(database_url: str) -> Iterator[Served]:
            yield from run(database_url)

        return on_each_database

    @pytest.fixture(scope=scope)
    def on_sqlite(fresh_database: Callable[[str], str]) -> Iterator[Served]:
        yield from run(fresh_database("sqlite"))

    return on_sqlite


def outcome(answer: httpx.Response) -> str:
    """Return the status of an answer, with the problem type of a refusal: `404 not-found`."""
    return f"{answer.status_code} {slug(answer)}" if answer.is_error else str(answer.status_code)


def slug(answer: httpx.Response) -> str:
    """Check the problem document of a refusal; return its type without the prefix."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["title"]
    kind: str = problem["type"]
    assert kind.startswith("urn:tessera:problem:")
    return kind.removeprefix("urn:tessera:problem:")
