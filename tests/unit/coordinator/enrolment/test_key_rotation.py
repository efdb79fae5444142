"""Rotation of a client's key: both keys sign it, both are valid for a time, then only the new one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from coordinator.db.tables.identity import ClientKeyRow
from coordinator.enrolment.key_rotation import MAX_KEYS_PER_DAY
from schemas.identity.documents import is_signed, sign
from schemas.identity.keys import name_of, public_key
from schemas.messages.enrolment import rotation_statement
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.key_rotation import let_expire, rotation


@pytest.fixture
def silo(coordinator: Served) -> Silo:
    return coordinator.enrol(coordinator.federation(privacy={"roster_policy": "tofu"}), "a")


def test_both_keys_are_valid_during_the_overlap(coordinator: Served, silo: Silo) -> None:
    new = Ed25519PrivateKey.generate()
    request = rotation(silo, new, overlap_seconds=86400)
    done, again = (silo.http.put("/v1/me/key", json=request) for _ in range(2))
    assert (done.status_code, again.json()) == (200, done.json())
    renewed = coordinator.signing(new)
    for http in (silo.http, renewed):
        assert http.get("/v1/me").json()["client_id"] == silo.client_id
    let_expire(coordinator, name_of(silo.key))
    assert slug(silo.http.get("/v1/me")) == "key-revoked"
    assert renewed.get("/v1/me").status_code == 200
    links = renewed.get(f"/v1/federations/{silo.federation_id}/roster").json()["items"]
    assert [link["event"] for link in links] == ["enrolled", "rotated"]
    statement = rotation_statement(
        federation_id=silo.federation_id,
        client_id=silo.client_id,
        old_key=links[0]["public_key"],
        public_key=links[1]["public_key"],
    )
    key = public_key(name_of(silo.key))
    assert is_signed("tessera-rotation-v1", statement, links[1]["endorsement"], key)


def test_the_old_key_ends_immediately_without_overlap(coordinator: Served, silo: Silo) -> None:
    new = Ed25519PrivateKey.generate()
    request = rotation(silo, new, overlap_seconds=0)
    assert silo.http.put("/v1/me/key", json=request).status_code == 200
    assert slug(silo.http.get("/v1/me")) == "key-revoked"
    assert coordinator.signing(new).get("/v1/me").status_code == 200


def test_an_ended_key_stays_ended_despite_clock_changes(coordinator: Served, silo: Silo) -> None:
    request = rotation(silo, Ed25519PrivateKey.generate(), overlap_seconds=0)
    answer = silo.http.put("/v1/me/key", json=request)
    assert answer.json()["old_key_expires_at"] > "2026", "people are told when it ended"
    with coordinator.database.read() as session:
        old = session.get_one(ClientKeyRow, name_of(silo.key))
        assert old.expires_at is not None
        assert old.expires_at < old.created_at - timedelta(days=365)


def test_an_overlap_can_be_shortened_but_not_extended(coordinator: Served, silo: Silo) -> None:
    new = Ed25519PrivateKey.generate()
    first, longer = (
        silo.http.put("/v1/me/key", json=rotation(silo, new, overlap_seconds=seconds)).json()
        for seconds in (3600, 86400)
    )
    assert longer == first
    at_once = silo.http.put("/v1/me/key", json=rotation(silo, new, overlap_seconds=0))
    assert at_once.json()["old_key_expires_at"] < first["old_key_expires_at"]
    assert slug(silo.http.get("/v1/me")) == "key-revoked"
    assert coordinator.signing(new).get("/v1/me").status_code == 200


def test_earlier_keys_end_no_later_than_their_successor(coordinator: Served, silo: Silo) -> None:
    second, third = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    repeated = rotation(silo, second, overlap_seconds=86400)
    assert silo.http.put("/v1/me/key", json=repeated).status_code == 200
    renewed = Silo(silo.client_id, silo.federation_id, second, coordinator.signing(second))
    assert renewed.http.put("/v1/me/key", json=rotation(renewed, third)).status_code == 200
    assert silo.http.put("/v1/me/key", json=repeated | {"overlap_seconds": 0}).status_code == 200
    assert slug(silo.http.get("/v1/me")) == "key-revoked"
    assert renewed.http.get("/v1/me").status_code == 200, "a repeated request ends no newer key"
    at_once = rotation(renewed, third, overlap_seconds=0)
    assert renewed.http.put("/v1/me/key", json=at_once).status_code == 200
    assert slug(renewed.http.get("/v1/me")) == "key-revoked"
    assert coordinator.signing(third).get("/v1/me").status_code == 200


def test_rotation_without_overlap_ends_all_earlier_keys(coordinator: Served, silo: Silo) -> None:
    second, third = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    assert silo.http.put("/v1/me/key", json=rotation(silo, second)).status_code == 200
    renewed = Silo(silo.client_id, silo.federation_id, second, coordinator.signing(second))
    at_once = rotation(renewed, third, overlap_seconds=0)
    assert renewed.http.put("/v1/me/key", json=at_once).status_code == 200
    for http in (silo.http, renewed.http):
        assert slug(http.get("/v1/me")) == "key-revoked"


def test_rotations_per_day_are_limited_with_retry_after(coordinator: Served, silo: Silo) -> None:
    for _ in range(MAX_KEYS_PER_DAY - 1):
        new = Ed25519PrivateKey.generate()
        assert silo.http.put("/v1/me/key", json=rotation(silo, new)).status_code == 200
        silo = Silo(silo.client_id, silo.federation_id, new, coordinator.signing(new))
    request = rotation(silo, Ed25519PrivateKey.generate())
    refused = silo.http.put("/v1/me/key", json=request)
    assert (refused.status_code, slug(refused)) == (429, "rate-limited")
    assert 86000 < int(refused.headers["retry-after"]) <= 86410
    assert f"{MAX_KEYS_PER_DAY} keys a day" in refused.json()["detail"]
    assert silo.http.get("/v1/me").status_code == 200
    with coordinator.database.write() as session:
        earlier = text("UPDATE client_keys SET created_at = '2020-01-01 00:00:00+00:00' WHERE client_id = :c")
        session.execute(earlier, {"c": silo.client_id})
    assert silo.http.put("/v1/me/key", json=request).status_code == 200


def test_a_replaced_key_cannot_name_another_successor(coordinator: Served, silo: Silo) -> None:
    first, second = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    assert silo.http.put("/v1/me/key", json=rotation(silo, first)).status_code == 200
    refused = silo.http.put("/v1/me/key", json=rotation(silo, second))
    assert (refused.status_code, slug(refused)) == (401, "key-revoked")
    assert slug(coordinator.signing(second).get("/v1/me")) == "signature-invalid"


def test_revoking_a_client_ends_all_its_keys(coordinator: Served, silo: Silo) -> None:
    new = Ed25519PrivateKey.generate()
    assert silo.http.put("/v1/me/key", json=rotation(silo, new)).status_code == 200
    path = f"/v1/federations/{silo.federation_id}/clients/{silo.client_id}"
    assert coordinator.admin.delete(path).status_code == 204
    for http in (silo.http, coordinator.signing(new)):
        assert slug(http.get("/v1/me")) == "key-revoked"


WRONG: dict[str, tuple[Callable[[Silo], dict[str, Any]], int, str]] = {
    "a stranger's endorsement": (lambda s: {"endorsement": _forged(s)}, 422, "weak-public-key"),
    "a proof by the old key": (lambda s: {"proof": _forged(s)}, 422, "weak-public-key"),
    "a weak key": (lambda s: {"public_key": "A" * 43}, 422, "weak-public-key"),
    "too long an overlap": (lambda s: {"overlap_seconds": 86401}, 422, "validation"),
}


def _forged(silo: Silo) -> str:
    return sign("tessera-rotation-v1", {"client": silo.client_id}, Ed25519PrivateKey.generate())


@pytest.mark.parametrize("case", WRONG)
def test_a_rotation_without_both_signatures_is_refused(coordinator: Served, silo: Silo, case: str) -> None:
    change, status, kind = WRONG[case]
    request = rotation(silo, Ed25519PrivateKey.generate(), **change(silo))
    refused = silo.http.put("/v1/me/key", json=request)
    assert (refused.status_code, slug(refused)) == (status, kind)
    assert silo.http.get("/v1/me").status_code == 200


def test_a_rotation_to_another_clients_key_is_refused(coordinator: Served, silo: Silo) -> None:
    stranger = coordinator.enrol(coordinator.federation(), "b")
    refused = silo.http.put("/v1/me/key", json=rotation(silo, stranger.key))
    assert (refused.status_code, slug(refused)) == (422, "weak-public-key")
    assert stranger.http.get("/v1/me").json()["client_id"] == stranger.client_id
