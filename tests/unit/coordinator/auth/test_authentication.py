from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from coordinator.auth.last_seen import LastSeenWriter
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import ClientRow, PersonToken
from coordinator.settings import Settings
from tests.scene.coordinator import Served, slug
from tests.scene.waiting import wait_until


def test_a_missing_credential_is_refused_before_the_body(coordinator: Served) -> None:
    json = {"Content-Type": "application/json"}
    refused = coordinator.http().post("/v1/federations", content=b"{not json", headers=json)
    assert (refused.status_code, slug(refused)) == (401, "auth-missing")
    assert refused.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header", ["Bearer nobody", "Bearer tsr_cl_nobody", "Basic YTpi", "Bearer", "Bearer \xff\xfe"]
)
def test_an_unknown_credential_is_invalid(coordinator: Served, header: str) -> None:
    refused = coordinator.http().get("/v1/me", headers={"Authorization": header.encode("latin-1")})
    assert (refused.status_code, slug(refused)) == (401, "credential-invalid")
    assert "invalid_token" in refused.headers["www-authenticate"]


def test_tokens_are_created_shown_once_listed_and_revoked(coordinator: Served) -> None:
    created = coordinator.admin.post("/v1/tokens", json={"role": "operator", "name": "ops"})
    assert created.status_code == 201
    token = created.json()
    assert token["token"].startswith("tsr_op_")
    life = datetime.fromisoformat(token["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < life <= timedelta(days=90)
    listed = coordinator.admin.get("/v1/tokens", params={"limit": 500})
    assert token["id"] in [item["id"] for item in listed.json()["items"]]
    assert token["token"] not in listed.text
    operator = coordinator.http(token["token"])
    assert operator.get("/v1/federations").status_code == 200
    assert coordinator.admin.delete(f"/v1/tokens/{token['id']}").status_code == 204
    assert slug(operator.get("/v1/federations")) == "credential-invalid"
    assert coordinator.admin.get(f"/v1/tokens/{token['id']}").json()["revoked_at"] is not None
    assert coordinator.admin.delete(f"/v1/tokens/{token['id']}").status_code == 204
    assert slug(coordinator.admin.delete("/v1/tokens/tok_none")) == "not-found"


def test_revoking_a_token_stops_its_request_in_flight(coordinator: Served) -> None:
    created = coordinator.admin.post("/v1/tokens", json={"role": "admin", "name": "to be stolen"})
    stolen = coordinator.http(created.json()["token"])
    (listed,) = (t for t in stolen.get("/v1/tokens").json()["items"] if t["name"] == "to be stolen")

    def trickling(body: bytes) -> Iterator[bytes]:
        yield body[:5]
        time.sleep(0.3)
        assert coordinator.admin.delete(f"/v1/tokens/{listed['id']}").status_code == 204
        yield body[5:]

    body = b'{"role": "admin", "name": "for later"}'
    refused = stolen.post("/v1/tokens", content=trickling(body), headers={"Content-Type": "application/json"})
    assert (refused.status_code, slug(refused)) == (401, "credential-invalid")
    names = {token["name"] for token in coordinator.admin.get("/v1/tokens").json()["items"]}
    assert "for later" not in names


def test_an_expired_token_is_invalid(coordinator: Served) -> None:
    created = coordinator.admin.post("/v1/tokens", json={"role": "auditor", "name": "brief"}).json()
    auditor = coordinator.http(created["token"])
    assert auditor.get("/v1/federations").status_code == 200
    with coordinator.database.write() as session:
        ended = update(PersonToken).where(PersonToken.id == created["id"])
        session.execute(ended.values(expires_at=database_time(session)))
    assert slug(auditor.get("/v1/federations")) == "credential-invalid"


def test_other_federations_are_not_found_for_a_client(coordinator: Served) -> None:
    own_federation, foreign_federation = coordinator.federation(), coordinator.federation()
    silo = coordinator.enrol(own_federation, "a")
    answers = [
        silo.http.get(f"/v1/federations/{federation_id}/events")
        for federation_id in (foreign_federation, "fed_none")
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert answers[0].text == answers[1].text


def test_a_revocation_takes_effect_and_is_shown_immediately(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    silo = coordinator.enrol(federation_id, "a")
    path = f"/v1/federations/{federation_id}/clients/{silo.client_id}"
    assert silo.http.get("/v1/me").status_code == 200
    assert coordinator.admin.delete(path).status_code == 204
    assert slug(silo.http.get("/v1/me")) == "key-revoked"
    assert coordinator.admin.get(path).json()["state"] == "revoked"
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").json()["clients"] == {
        "enrolled": 0,
        "revoked": 1,
    }
    assert coordinator.admin.delete(path).status_code == 204
    elsewhere = coordinator.federation()
    assert slug(coordinator.admin.get(f"/v1/federations/{elsewhere}/clients/{silo.client_id}")) == "not-found"


def test_clients_are_shown_with_profile_and_last_contact(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    silo = coordinator.enrol(federation_id, "a", gpu="H200")
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    assert [client["client_id"] for client in shown] == [silo.client_id]
    assert shown[0]["profile"]["base_model"] == "tiny-s-3f0c9a1b2c3d"
    assert shown[0]["profile"]["gpu"] == "H200"
    assert shown[0]["last_seen_at"] is not None
    assert shown[0]["rounds"] == 0
    assert shown[0]["bytes"] == {"up": 0, "down": 0}


def test_last_seen_at_is_updated_after_15_seconds(
    database: Database, serve: Callable[..., Served], database_url: str
) -> None:
    served = serve(database_url)
    federation_id = served.federation()
    silo = served.enrol(federation_id, "a")

    def last_seen() -> datetime:
        with database.read() as session:
            last_seen_at = session.scalars(select(ClientRow.last_seen_at)).one()
            assert last_seen_at is not None
            return last_seen_at

    at_enrolment = last_seen()
    silo.http.get("/v1/me")
    assert last_seen() == at_enrolment
    with database.write() as session:
        session.execute(update(ClientRow).values(last_seen_at=at_enrolment - timedelta(seconds=15)))
    silo.http.get("/v1/me")
    wait_until(lambda: last_seen() > at_enrolment, event="the time of the client")


def test_clients_of_one_second_are_all_seen(
    database: Database, serve: Callable[..., Served], database_url: str
) -> None:
    served = serve(database_url)
    federation_id = served.federation()
    silos = [served.enrol(federation_id, name) for name in "abc"]
    stale = datetime.now(UTC) - timedelta(minutes=3)
    with database.write() as session:
        session.execute(update(ClientRow).values(last_seen_at=stale))
    for silo in silos:
        assert silo.http.get("/v1/me").status_code == 200

    def are_seen() -> bool:
        with database.read() as session:
            return all(seen_at > stale for seen_at in session.scalars(select(ClientRow.last_seen_at)))

    wait_until(are_seen, event="the times of three clients")


def test_last_seen_at_does_not_wait_for_locks(
    fresh_postgres: Callable[[], str], serve: Callable[..., Served]
) -> None:
    served = serve(fresh_postgres())
    database, federation_id = served.database, served.federation()
    locked, free = (served.enrol(federation_id, name).client_id for name in "ab")
    writer, later = LastSeenWriter(), datetime.now(UTC) + timedelta(minutes=1)
    writer.record(locked, later)
    writer.record(free, later + timedelta(seconds=2))
    with database.write() as session:
        session.execute(select(ClientRow).where(ClientRow.id == locked).with_for_update())
        began = time.monotonic()
        writer.flush(database)
        assert time.monotonic() - began < 5
    with database.read() as session:
        last_seen_at = {row.id: row.last_seen_at for row in session.scalars(select(ClientRow))}
    assert last_seen_at[free] == later + timedelta(seconds=2)
    assert last_seen_at[locked] is not None
    assert last_seen_at[locked] < later


@pytest.mark.parametrize("token", ["x" * 20, "tsr_cl_" + "a" * 43, "tsr_aud_" + "1" * 20, "pässwörd" * 3])
def test_a_configured_admin_token_of_any_form_works(
    fresh_database: Callable[[str], str], serve: Callable[..., Served], token: str
) -> None:
    served = serve(fresh_database("sqlite"), admin_token=token)
    headers = {"Authorization": b"Bearer " + token.encode()}
    assert served.http().get("/v1/tokens", headers=headers).status_code == 200
    refused = served.http().get("/v1/tokens", headers={"Authorization": "Bearer " + "y" * 20})
    assert slug(refused) == "credential-invalid"


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_admin_token_is_unset(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("TESSERA_ADMIN_TOKEN", token)
    assert Settings().admin_token is None
