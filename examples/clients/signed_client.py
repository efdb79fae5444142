"""A client from nothing but httpx and cryptography: it enrols, signs its requests, takes part until the end.

    python signed_client.py URL NAME FOLDER < token

Where a real one would train, this one adds 1 to every value. Its key and its membership are in FOLDER, so
that it may be stopped and started again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MEDIA_TYPE = "application/vnd.tessera.adapter+safetensors"
PROFILE = {
    "architecture": "LlamaForCausalLM",
    "base_model": "toy-000000000000",
    "hidden_size": 4,
    "layers": 4,
    # (d_out, d_in) of each role: LoRA's tensors follow from them.
    "shapes": {role: [4, 4] for role in ("q", "k", "v", "o", "gate", "up", "down")},
    "agent_version": "example",
    "protocol_version": 2,
}


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def raw(encoded: str) -> bytes:
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))


def statement(purpose: str, document: dict[str, Any]) -> bytes:
    """Write what is signed of a document: its purpose, and all other members in the form of RFC 8785."""
    members = {name: value for name, value in document.items() if name != "signature"}
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{purpose}\n{canonical}".encode()


class Signing(httpx.Auth):
    """Sign requests: RFC 9421 over method, authority, path, query, and the body's digest (RFC 9530)."""

    requires_request_body = True

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._name = text(key.public_key().public_bytes_raw())

    def auth_flow(self, request: httpx.Request) -> Any:
        path, _, query = request.url.raw_path.decode().partition("?")
        covered = {
            "@method": request.method,
            "@authority": request.headers["Host"].lower(),
            "@path": path,
            "@query": f"?{query}",
        }
        if request.content:
            digest = base64.b64encode(hashlib.sha256(request.content).digest()).decode()
            request.headers["Content-Digest"] = covered["content-digest"] = f"sha-256=:{digest}:"
        now = int(time.time())
        parameters = (
            "(" + " ".join(f'"{name}"' for name in covered) + f");created={now};expires={now + 30}"
            f';nonce="{secrets.token_urlsafe(18)}";keyid="{self._name}";alg="ed25519";tag="tessera-v1"'
        )
        base = "".join(f'"{name}": {value}\n' for name, value in covered.items())
        signature = self._key.sign(f'{base}"@signature-params": {parameters}'.encode())
        request.headers["Signature-Input"] = f"sig1={parameters}"
        request.headers["Signature"] = f"sig1=:{base64.b64encode(signature).decode()}:"
        yield request


def no_refusal(response: httpx.Response) -> None:
    """End with what the coordinator says, in a problem document of RFC 9457, when it refuses something."""
    if response.is_error:
        response.read()
        is_problem = response.headers["Content-Type"] == "application/problem+json"
        sys.exit(json.dumps(response.json(), indent=1) if is_problem else response.text)


HOOKS = {"response": [no_refusal]}


def enrol(http: httpx.Client, key: Ed25519PrivateKey, token: str, name: str) -> dict[str, Any]:
    """Make sure who answers, then spend the token on the key."""
    token_id, server = token[5:29], token[74:117]  # tsr1_<24>_<43>_<43>_<8>
    challenge = secrets.token_urlsafe(24)
    hello = http.get("/v1/hello", params={"challenge": challenge}).json()
    signing_key = raw(hello["signing_key"])
    if hello["challenge"] != challenge or text(hashlib.sha256(signing_key).digest()) != server:
        sys.exit("this is not the coordinator that the token is of")
    public = Ed25519PublicKey.from_public_bytes(signing_key)
    public.verify(raw(hello["signature"]), statement("tessera-hello-v1", hello))
    rows = text(key.public_key().public_bytes_raw())
    content = {"server": server, "token": token_id, "public_key": rows, "nonce": hello["nonce"]}
    proof = text(key.sign(statement("tessera-enrolment-v1", content)))
    request = {"token": token, "name": name, "profile": PROFILE, "public_key": rows}
    built = http.post("/v1/enrolments", json={**request, "nonce": hello["nonce"], "proof": proof})
    return {**built.json(), "signing_key": hello["signing_key"]}


def trained(weights: bytes, manifest: dict[str, Any]) -> bytes:
    """Unpack a body of weights, train, and pack the body of an update (docs/reference/wire-format.md)."""
    (length,) = struct.unpack("<Q", weights[:8])
    header = json.loads(weights[8 : 8 + length])
    values = array("f", weights[8 + length :])
    header["__metadata__"] = {"tessera": json.dumps(manifest)}
    beginning = json.dumps(header).encode()
    return struct.pack("<Q", len(beginning)) + beginning + array("f", [v + 1 for v in values]).tobytes()


def take_part(http: httpx.Client, member: dict[str, Any]) -> None:
    """Poll, join, download, train, upload, until the federation is finished."""
    rounds = f"/v1/federations/{member['federation_id']}/rounds"
    server = Ed25519PublicKey.from_public_bytes(raw(member["signing_key"]))
    while True:
        answer = http.get(f"{rounds}/current")
        if answer.status_code == 204:
            time.sleep(float(answer.headers["Retry-After"]))
            continue
        brief = answer.json()
        if brief["state"] == "finished":
            print(f"finished before round {brief['round']}")
            return
        number = brief["round"]
        joined = http.post(f"{rounds}/{number}/join").json()
        manifest = joined["manifest"]
        server.verify(raw(manifest["signature"]), statement("tessera-round-v1", manifest))
        weights = http.get(f"{rounds}/{number}/weights").content
        base = f"sha256:{hashlib.sha256(weights).hexdigest()}"
        if not base == manifest["weights"] == joined["weights"]["digest"] or manifest["round"] != number:
            sys.exit("these are not the weights that the coordinator signed")
        content = {"version": 1, "kind": "update", "federation": member["federation_id"], "round": number}
        content |= {"client": member["client_id"], "base": base, "pack": None, "examples": 1, "recipe": {}}
        body = trained(weights, content)
        http.put(f"{rounds}/{number}/update", content=body, headers={"Content-Type": MEDIA_TYPE})
        print(f"round {number}: {len(body)} bytes delivered")


def main() -> None:
    url, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    file, membership = folder / "client.key", folder / "membership.json"
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(Ed25519PrivateKey.generate().private_bytes_raw())
    key = Ed25519PrivateKey.from_private_bytes(file.read_bytes())
    if not membership.exists():
        with httpx.Client(base_url=url, event_hooks=HOOKS) as http:
            membership.write_text(json.dumps(enrol(http, key, sys.stdin.readline().strip(), name)))
    with httpx.Client(base_url=url, auth=Signing(key), timeout=60, event_hooks=HOOKS) as http:
        take_part(http, json.loads(membership.read_text()))


if __name__ == "__main__":
    main()
