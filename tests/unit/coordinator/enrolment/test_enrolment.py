from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import update

from coordinator.db.engine import database_time
from coordinator.db.tables.federations import EnrolmentTokenRow
from schemas.identity.documents import sign
from schemas.identity.enrolment_token import read
from schemas.identity.keys import encode, name_of
from schemas.messages.enrolment import enrolment_statement
from tests.scene.coordinator import PROFILE, Served, enrolment, slug

RETRY_KEY = "q" * 43
BEARER = {"privacy": {"allow_bearer_clients": True}}


def _request(token: str, **changes: Any) -> dict[str, Any]:
    """Return the enrolment request of a bearer client."""
    return {"token": token, "name": "a", "profile": PROFILE} | changes


def _with_key(served: Served, token: str, key: Ed25519PrivateKey, **changes: Any) -> httpx.Response:
    anonymous = served.http()
    return anonymous.post("/v1/enrolments", json=enrolment(anonymous, token, "a", key) | changes)


def test_an_enrolled_client_reads_its_identity_and_layout(coordinator: Served) -> None:
    federation_id = coordinator.federation(adapter={"rank": 2, "blocks": 2, "roles": ["q", "gate"]})
    silo = coordinator.enrol(federation_id, "hospital-a", roles=["q", "k"])
    me = silo.http.get("/v1/me").json()
    assert me["client_id"] == silo.client_id
    assert me["federation_id"] == federation_id
    assert me["state"] == "enrolled"
    # gate is in the plan, but this architecture does not have it
    assert me["layout"] == {"b0.q.P": [2, 2], "b0.q.Q": [2], "b1.q.P": [2, 2], "b1.q.Q": [2]}
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{silo.client_id}").json()
    assert shown["identity"] == "key"


def test_a_token_enrols_one_key_repeatably(coordinator: Served) -> None:
    token = coordinator.enrolment_token(coordinator.federation(), "a")
    key = Ed25519PrivateKey.generate()
    created, again = (_with_key(coordinator, token, key) for _ in range(2))
    assert (created.status_code, again.status_code) == (201, 200)
    assert again.json() == created.json()
    assert created.json()["credential"] is None
    foreign = _with_key(coordinator, token, Ed25519PrivateKey.generate())
    assert (foreign.status_code, slug(foreign)) == (401, "enrolment-token-invalid")
    assert foreign.headers["www-authenticate"].startswith("Bearer")
    without = coordinator.http().post("/v1/enrolments", json=_request(token))
    assert (without.status_code, without.text) == (401, foreign.text)


def test_concurrent_keys_cannot_share_a_token(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    token = coordinator.enrolment_token(federation_id, "a")
    keys = [Ed25519PrivateKey.generate() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda key: _with_key(coordinator, token, key), keys))
    assert sorted(answer.status_code for answer in answers) == [201, 401, 401, 401, 401, 401]
    assert len(coordinator.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]) == 1
    for key, answer in zip(keys, answers, strict=True):
        assert coordinator.signing(key).get("/v1/me").is_success == answer.is_success


def test_concurrent_requests_of_one_key_enrol_once(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    token, key = coordinator.enrolment_token(federation_id, "a"), Ed25519PrivateKey.generate()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: _with_key(coordinator, token, key), range(6)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 200, 201]
    assert len({answer.text for answer in answers}) == 1


def test_an_enrolment_proof_is_bound_to_its_token(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    token, second = (
        coordinator.enrolment_token(federation_id, "a"),
        coordinator.enrolment_token(federation_id, "b"),
    )
    key, anonymous = Ed25519PrivateKey.generate(), coordinator.http()
    good = enrolment(anonymous, token, "a", key)
    stolen = enrolment(anonymous, token, "a", Ed25519PrivateKey.generate())
    for proof in (stolen["proof"], enrolment(anonymous, second, "a", key)["proof"], "A" * 86, "?"):
        refused = anonymous.post("/v1/enrolments", json=good | {"proof": proof})
        assert (refused.status_code, slug(refused)) == (422, "weak-public-key")
    for member in ("nonce", "proof"):
        refused = anonymous.post("/v1/enrolments", json={k: v for k, v in good.items() if k != member})
        assert (refused.status_code, refused.json()["field"]) == (422, member)


def test_a_foreign_nonce_is_refused(coordinator: Served) -> None:
    text = coordinator.enrolment_token(coordinator.federation(), "a")
    key, token = Ed25519PrivateKey.generate(), read(text)
    statement = enrolment_statement(
        server=token.server, token=token.id, public_key=name_of(key), nonce=encode(bytes(40))
    )
    shown = {name: statement[name] for name in ("public_key", "nonce")}
    proof = sign("tessera-enrolment-v1", statement, key)
    refused = coordinator.http().post("/v1/enrolments", json=_request(text, proof=proof, **shown))
    assert (refused.status_code, refused.json()["field"]) == (422, "nonce")


def test_a_key_belongs_to_one_client(coordinator: Served) -> None:
    key = Ed25519PrivateKey.generate()
    tokens = [coordinator.enrolment_token(coordinator.federation(), "a") for _ in range(2)]
    first, second = (_with_key(coordinator, token, key) for token in tokens)
    assert first.status_code == 201
    assert (second.status_code, slug(second)) == (422, "weak-public-key")
    assert _with_key(coordinator, tokens[1], Ed25519PrivateKey.generate()).status_code == 201


def test_a_token_may_be_bound_to_a_network(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    elsewhere = coordinator.enrolment_token(federation_id, "a", cidr="192.0.2.0/24")
    refused = _with_key(coordinator, elsewhere, Ed25519PrivateKey.generate())
    assert (refused.status_code, slug(refused)) == (401, "enrolment-token-invalid")
    federation_id = coordinator.federation()
    bound = coordinator.enrolment_token(federation_id, "a", cidr="127.0.0.0/8")
    assert _with_key(coordinator, bound, Ed25519PrivateKey.generate()).status_code == 201
    path = f"/v1/federations/{federation_id}/enrolment-tokens"
    wrong = coordinator.admin.post(path, json={"client_name": "b", "cidr": "10.0.0.1/8"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "cidr")


@pytest.mark.slow
def test_client_addresses_come_only_from_trusted_proxies(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    def ask(served: Served) -> int:
        token = served.enrolment_token(served.federation(), "a", cidr="192.0.2.0/24")
        anonymous = served.http()
        anonymous.headers["X-Forwarded-For"] = "203.0.113.9, 192.0.2.7"
        request = enrolment(anonymous, token, "a", Ed25519PrivateKey.generate())
        return anonymous.post("/v1/enrolments", json=request).status_code

    assert ask(serve(fresh_database("sqlite"))) == 401
    assert ask(serve(fresh_database("sqlite"), trusted_proxies="127.0.0.1")) == 201


def test_a_repeat_after_the_tokens_life_is_refused(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    token, key = coordinator.enrolment_token(federation_id, "a"), Ed25519PrivateKey.generate()
    assert _with_key(coordinator, token, key).status_code == 201
    with coordinator.database.write() as session:
        ended = update(EnrolmentTokenRow).where(EnrolmentTokenRow.federation_id == federation_id)
        session.execute(ended.values(expires_at=database_time(session)))
    assert _with_key(coordinator, token, key).status_code == 401


def test_unused_tokens_are_listed_without_secrets(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    path = f"/v1/federations/{federation_id}/enrolment-tokens"
    used, lost, _ = (coordinator.enrolment_token(federation_id, name) for name in ("a", "b", "c"))
    assert _with_key(coordinator, used, Ed25519PrivateKey.generate()).status_code == 201
    replaced = coordinator.admin.post(path, json={"client_name": "b", "replace": True}).json()["token"]
    pages = [coordinator.person("operator").get(path, params={"limit": 1})]
    pages.append(coordinator.admin.get(path, params={"after": pages[0].json()["next"]}))
    items = [item for page in pages for item in page.json()["items"]]
    assert [item["client_name"] for item in items] == ["c", "b"]
    assert items[1]["id"] == f"enr_{read(replaced).id}"
    for token in (lost, replaced):
        assert read(token).secret not in "".join(page.text for page in pages)


def test_a_replaced_unused_token_ends(
    coordinator: Served,
) -> None:
    federation_id = coordinator.federation()
    path = f"/v1/federations/{federation_id}/enrolment-tokens"
    lost = coordinator.enrolment_token(federation_id, "a")
    request = {"client_name": "a", "replace": True}
    created = coordinator.admin.post(path, json=request)
    assert created.status_code == 201
    key = Ed25519PrivateKey.generate()
    refused = _with_key(coordinator, lost, key)
    assert (refused.status_code, slug(refused)) == (401, "enrolment-token-invalid")
    assert _with_key(coordinator, created.json()["token"], key).status_code == 201
    replaced = coordinator.admin.post(path, json=request)
    assert (replaced.status_code, slug(replaced)) == (409, "client-name-taken")
    pages = {"after": "0", "limit": 100}
    ended: list[str] = []
    while pages["after"]:
        page = coordinator.admin.get("/v1/audit", params=pages).json()
        ended += [entry["subject"] for entry in page["items"] if entry["event"] == "enrolment-token-ended"]
        pages["after"] = page["next"]
    assert ended.count(f"enr_{read(lost).id}") == 1


def test_an_unsupported_protocol_version_gets_426(coordinator: Served) -> None:
    token = coordinator.enrolment_token(coordinator.federation(), "a")
    profile = PROFILE | {"protocol_version": 1}
    refused = coordinator.http().post("/v1/enrolments", json=_request(token, profile=profile))
    assert (refused.status_code, slug(refused)) == (426, "protocol-version")
    assert refused.headers["upgrade"] == "tessera/1"
    assert refused.json()["supported"] == [2]


def test_an_enrolment_is_at_most_16_kib(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    request = enrolment(
        coordinator.http(), coordinator.enrolment_token(federation_id, "a"), "a", Ed25519PrivateKey.generate()
    )
    body = json.dumps(request).encode()
    json_type = {"Content-Type": "application/json"}
    large = coordinator.http().post("/v1/enrolments", content=body.ljust(16 * 1024 + 1), headers=json_type)
    assert (large.status_code, slug(large), large.json()["limit"]) == (413, "body-too-large", 16384)
    fits = coordinator.http().post("/v1/enrolments", content=body.ljust(16 * 1024), headers=json_type)
    assert fits.status_code == 201
