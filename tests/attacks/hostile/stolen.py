"""What a thief of a coordinator's files looks for, and a bearer client."""

from __future__ import annotations

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.scene.coordinator import PROFILE
from tests.scene.coordinator_process import ServedProcess

RETRY_KEY = "cmV0cnkta2V5LW9mLXRoZS10ZXN0cy0zMi1ieXRlcyE"


def bearer_client(served: ServedProcess, token: str) -> str:
    """Enrol without a key, repeat the request, and return the credential."""
    anonymous = served.http()
    request = {"token": token, "name": "bearer", "profile": PROFILE, "retry_key": RETRY_KEY}
    answers = [anonymous.post("/v1/enrolments", json=request) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert anonymous.post("/v1/enrolments", json=request | {"retry_key": "q" * 43}).status_code == 401
    credential = str(answers[0].json()["credential"])
    assert served.http(credential).get("/v1/me").status_code == 200
    assert served.http(credential + "x").get("/v1/me").status_code == 401
    return credential


def seed_of(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())


def forms(name: str, raw: bytes) -> dict[str, str]:
    plain = base64.b64encode(raw).decode().rstrip("=")
    url = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return {f"{name}, {kind}": form for kind, form in (("hex", raw.hex()), ("base64", plain), ("url", url))}
