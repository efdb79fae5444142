"""Enrolment, the agent's key and the coordinator's proof, against real coordinators."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.errors import CoordinatorNotTrusted, Stopped, TokenDamaged
from client_agent.identity.agent_folder import read_membership
from client_agent.identity.membership import enrol, read_key
from client_agent.transport.client import CoordinatorApi
from schemas.identity.enrolment_token import read
from schemas.messages.enrolment import Profile
from tests.scene.coordinator import PROFILE, Served

Serve = Callable[..., Served]
AGENT = Profile.model_validate(PROFILE)


class Recording(httpx.HTTPTransport):
    """Records the requests; drops the answer of one path and stops."""

    def __init__(self, lost: str | None = None) -> None:
        super().__init__()
        self.sent: list[httpx.Request] = []
        self._lost = lost

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        answer = super().handle_request(request)
        if request.url.path == self._lost:
            answer.close()
            raise Stopped
        return answer


Connect = Callable[..., CoordinatorApi]


@pytest.fixture
def api() -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(
            served: Served, key: Ed25519PrivateKey | None = None, transport: httpx.BaseTransport | None = None
        ) -> CoordinatorApi:
            connection = CoordinatorApi(served.url, key=key, deadline_seconds=0, transport=transport)
            return stack.enter_context(connection)

        yield connect


def test_private_key_never_leaves_the_silo(served: Served, tmp_path: Path, api: Connect) -> None:
    recording = Recording()
    federation_id = served.federation()
    token = served.enrolment_token(federation_id, "aster")
    member = enrol(api(served, None, recording), tmp_path, token=token, name="aster", profile=AGENT)
    assert member == read_membership(tmp_path)
    file = tmp_path / "client.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    raw = read_key(tmp_path).private_bytes_raw()
    sent = b"".join(
        request.url.raw_path + str(request.headers).encode() + request.read() for request in recording.sent
    )
    assert not any(secret in sent for secret in (raw, raw.hex().encode(), file.read_bytes().split(b"\n")[1]))
    assert api(served, read_key(tmp_path)).me().client_id == member.client_id


def test_enrolment_is_repeatable_after_a_lost_answer(served: Served, tmp_path: Path, api: Connect) -> None:
    federation_id = served.federation()
    token = served.enrolment_token(federation_id, "aster")
    with pytest.raises(Stopped):
        enrol(
            api(served, None, Recording("/v1/enrolments")), tmp_path, token=token, name="aster", profile=AGENT
        )
    key = (tmp_path / "client.key").read_bytes()
    member = enrol(api(served), tmp_path, token=token, name="aster", profile=AGENT)
    assert (tmp_path / "client.key").read_bytes() == key
    clients = served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    assert [client["client_id"] for client in clients] == [member.client_id]


def test_damaged_token_is_not_sent_anywhere(served: Served, tmp_path: Path, api: Connect) -> None:
    recording = Recording()
    token = served.enrolment_token(served.federation(), "aster")
    for damaged in (token[:-1], token + "x", token.replace("_", "-")):
        with pytest.raises(TokenDamaged, match="copy it whole"):
            enrol(api(served, None, recording), tmp_path, token=damaged, name="aster", profile=AGENT)
    assert recording.sent == []


def test_other_coordinator_receives_only_a_greeting(
    served: Served, serve: Serve, fresh_database: Callable[[str], str], tmp_path: Path, api: Connect
) -> None:
    token = served.enrolment_token(served.federation(), "aster")
    impostor, recording = serve(fresh_database("sqlite"), signing_key=None), Recording()
    with pytest.raises(CoordinatorNotTrusted, match="not the coordinator"):
        enrol(api(impostor, None, recording), tmp_path, token=token, name="aster", profile=AGENT)
    assert [request.url.path for request in recording.sent] == ["/v1/hello"]
    assert not (tmp_path / "client.key").exists()
    sent = str(recording.sent[0].url) + str(recording.sent[0].headers)
    assert read(token).id not in sent


class ChangedAnswers(httpx.HTTPTransport):
    """Changes an answer in transit."""

    def __init__(self, change: Callable[[str], str]) -> None:
        super().__init__()
        self._change = change

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        answer.read()
        return httpx.Response(answer.status_code, text=self._change(answer.text))


def test_altered_or_replayed_greeting_is_refused(served: Served, api: Connect) -> None:
    token = read(served.enrolment_token(served.federation(), "aster"))
    old = served.http().get("/v1/hello", params={"challenge": "c" * 32}).text
    changes: list[Callable[[str], str]] = [
        lambda text: text.replace('"Tessera"', '"Tesserae"'),
        lambda text: text.replace('"protocol_version":2', '"protocol_version":3'),
        lambda text: text.replace("{", '{"further":1,', 1),
        lambda _: old,
    ]
    for change in changes:
        with pytest.raises(CoordinatorNotTrusted):
            api(served, None, ChangedAnswers(change)).proved_hello(token.server)
    assert api(served, None, ChangedAnswers(lambda text: text)).proved_hello(token.server).name == "Tessera"
