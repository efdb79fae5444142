"""A stolen database with the coordinator's logs: no credential and no secret in either."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.transport.request_signing import SignedRequests
from schemas.identity.enrolment_token import read
from schemas.identity.keys import decode
from tests.attacks.hostile.stolen import RETRY_KEY, bearer_client, forms, seed_of
from tests.scene.coordinator import ADMIN_TOKEN, SIGNING_KEY, Silo
from tests.scene.coordinator_process import ServedProcess, start_process
from tests.scene.rounds import deliver, join, plan, wait_for, weights
from tests.scene.thief import row_values

TELLING = np.float32(0.0123456789)
_WORD = re.compile(r"[A-Za-z0-9_+/=:.-]{12,}")


@dataclass
class StolenData:
    """The stolen values and log, and the secrets that they must not contain."""

    served: ServedProcess
    silos: list[Silo]
    values: list[Any]
    log: str
    secrets: dict[str, str]
    signatures: list[str]


@pytest.fixture(scope="module")
def stolen(
    backend: str, fresh_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StolenData]:
    """A federation after one round, its people, and an unused token."""
    folder = tmp_path_factory.mktemp("stolen")
    served = start_process(fresh_database(backend), folder, log_level="debug")
    signatures: list[str] = []
    try:
        federation_id = served.federation(**plan(rounds={"total": 2}, privacy={"allow_bearer_clients": True}))
        silos = [served.enrol(federation_id, f"silo-{i}") for i in range(2)]
        for silo in silos:
            silo.http.event_hooks = {
                "request": [lambda request: signatures.append(request.headers["Signature"])]
            }
        unused = served.enrolment_token(federation_id, "late")
        person = served.admin.post("/v1/tokens", json={"role": "operator", "name": "x"}).json()["token"]
        used = served.enrolment_token(federation_id, "bearer")
        credential = bearer_client(served, used)
        served.start_federation(federation_id)
        telling = {
            "b0.q.P": np.full((2, 2), TELLING, np.float32),
            "b0.q.Q": np.full(2, TELLING, np.float32),
        }
        for silo in silos:
            join(silo, 1)
        for silo in silos:
            deliver(silo, 1, telling)
        wait_for(served, federation_id, 1, "published")
        join(silos[0], 2)
        assert weights(silos[0], 2)["b0.q.P"][0, 0] == pytest.approx(TELLING)
        secrets = {
            "the admin's token": ADMIN_TOKEN,
            "a person's token": person,
            "an enrolment token's secret": read(unused).secret,
            "a used enrolment token's secret": read(used).secret,
            "a bearer's credential": credential,
            "a bearer's retry key": RETRY_KEY,
            **forms("the coordinator's key", decode(SIGNING_KEY)),
            **{k: v for silo in silos for k, v in forms(silo.client_id, seed_of(silo.key)).items()},
        }
        yield StolenData(
            served, silos, list(row_values(served.database_url)), _log(folder), secrets, signatures
        )
    finally:
        served.stop()


def _log(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.iterdir() if file.suffix == ".log")


def _text(value: Any) -> str:
    return bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value)


def test_database_and_logs_contain_no_secret(stolen: StolenData) -> None:
    output = stolen.log + "\n".join(map(_text, stolen.values))
    assert stolen.silos[0].client_id in output
    assert [name for name, secret in stolen.secrets.items() if secret in output] == []


@pytest.mark.slow
def test_stored_words_are_no_bearer_tokens(stolen: StolenData) -> None:
    words = {word for value in stolen.values for word in _WORD.findall(_text(value))}
    words |= {word for word in _WORD.findall(stolen.log)}
    assert len(words) > 50
    with httpx.Client(base_url=stolen.served.url, timeout=30, verify=False) as thief:
        for word in sorted(words):
            answer = thief.get("/v1/federations", headers={"Authorization": f"Bearer {word}"})
            assert answer.status_code == 401, word
        admin = thief.get("/v1/federations", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        assert admin.status_code == 200, "this door is opened by a token"


def test_stored_bytes_are_no_members_private_key(stolen: StolenData) -> None:
    """Whatever has 32 bytes may be tried as a private key: it is no member's."""
    seeds = {raw for value in stolen.values for raw in _thirty_two_bytes(value)}
    assert len(seeds) > 10
    path = f"/v1/federations/{stolen.silos[0].federation_id}/rounds/current"
    with httpx.Client(base_url=stolen.served.url, timeout=30, verify=False) as thief:
        for seed in seeds:
            key = Ed25519PrivateKey.from_private_bytes(seed)
            assert thief.get(path, auth=SignedRequests(key)).status_code == 401
        member = thief.get(path, auth=SignedRequests(stolen.silos[0].key))
        assert member.is_success, "this door is opened by a member's key"


def _thirty_two_bytes(value: Any) -> Iterator[bytes]:
    for word in re.findall(r"[0-9a-f]{64}|[A-Za-z0-9_-]{43}", _text(value)):
        yield bytes.fromhex(word) if len(word) == 64 else base64.urlsafe_b64decode(word + "=")


def test_logs_contain_no_signature_and_no_tensor(stolen: StolenData) -> None:
    assert stolen.signatures
    assert [
        signature for signature in stolen.signatures if signature.removeprefix("sig1=:")[:40] in stolen.log
    ] == []
    raw = TELLING.tobytes() * 2
    shown = [repr(float(TELLING))[:10], raw.hex(), base64.b64encode(raw).decode()[:10]]
    assert [form for form in shown if form in stolen.log] == []
    assert any(raw in bytes(value) for value in stolen.values if isinstance(value, bytes | memoryview))
    events = [json.loads(line)["event"] for line in stolen.log.splitlines() if line.startswith("{")]
    assert "update-accepted" in events
