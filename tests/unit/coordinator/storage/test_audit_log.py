"""The audit log: actions of access are recorded, and removed entries are detected."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text
from typer import Typer
from typer.testing import CliRunner

from coordinator import cli
from coordinator.db.federation_lock import lock_federation
from schemas.identity.documents import hash_of
from schemas.identity.enrolment_token import read
from tests.scene.coordinator import ADMIN_TOKEN, Served, coordinator_fixture, slug
from tests.scene.database import ask
from tests.scene.key_rotation import rotation
from tests.scene.waiting import wait_until

served = coordinator_fixture("each")


def entries(served: Served) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = served.admin.get("/v1/audit").json()["items"]
    return items


def test_admin_actions_are_audited_with_their_actor(served: Served) -> None:
    federation_id = served.federation()
    token = served.enrolment_token(federation_id, "a")
    key = Ed25519PrivateKey.generate()
    client_id, _ = (served.try_enrol(token, "a", key).json()["client_id"] for _ in range(2))
    assert served.try_enrol(token, "a").status_code == 401
    silo = served.enrol_over_http(federation_id, "b")
    request = rotation(silo, Ed25519PrivateKey.generate())
    assert [silo.http.put("/v1/me/key", json=request).status_code for _ in range(2)] == [200, 200]
    for _ in range(2):
        assert served.admin.delete(f"/v1/federations/{federation_id}/clients/{client_id}").status_code == 204
    created = served.admin.post("/v1/tokens", json={"role": "auditor", "name": "x"}).json()
    for _ in range(2):
        assert served.admin.delete(f"/v1/tokens/{created['id']}").status_code == 204
    for order in ("start", "start", "pause", "start", "finish", "finish"):
        assert served.admin.post(f"/v1/federations/{federation_id}/{order}").status_code == 200
    enr = "enr_" + read(token).id
    actions = [(e["event"], e["actor"], e["subject"]) for e in entries(served)]
    second = actions[4][2]
    assert actions == [
        ("federation-created", "settings", federation_id),
        ("enrolment-token-made", "settings", enr),
        ("client-enrolled", enr, client_id),
        ("enrolment-refused", enr, "a"),
        ("enrolment-token-made", "settings", second),
        ("client-enrolled", second, silo.client_id),
        ("client-key-replaced", silo.client_id, silo.client_id),
        ("client-revoked", "settings", client_id),
        ("person-token-made", "settings", created["id"]),
        ("person-token-revoked", "settings", created["id"]),
        ("federation-started", "settings", federation_id),
        ("federation-paused", "settings", federation_id),
        ("federation-started", "settings", federation_id),
        ("federation-finished", "settings", federation_id),
    ]
    assert _is_chain(entries(served))
    assert entries(served)[3]["reason"] == "used before"


def test_ids_have_names_outside_of_the_chain(served: Served) -> None:
    federation_id = served.federation(name="Klinik 1")
    silo = served.enrol_over_http(federation_id, "cedar")
    operator = served.person("operator")
    assert operator.post(f"/v1/federations/{federation_id}/start").status_code == 200
    page = served.admin.get("/v1/audit").json()
    creation, *_, started = page["items"]
    assert page["names"][federation_id] == {"name": "Klinik 1", "federation": None}
    assert page["names"][silo.client_id] == {"name": "cedar", "federation": "Klinik 1"}
    assert page["names"][started["actor"]] == {"name": "the operator", "federation": None}
    assert page["names"][page["items"][1]["subject"]] == {"name": "cedar", "federation": "Klinik 1"}
    assert creation["actor"] == "settings"
    assert "settings" not in page["names"]
    for role in ("auditor", "operator"):
        shown = served.person(role).get("/v1/audit").json()["names"]
        assert page["names"].items() <= shown.items()
    assert all("names" not in entry for entry in page["items"])


def test_the_log_names_a_removed_federation(served: Served) -> None:
    federation_id = served.federation(name="mistake")
    assert served.admin.delete(f"/v1/federations/{federation_id}").status_code == 204
    names = served.person("auditor").get("/v1/audit").json()["names"]
    assert names[federation_id] == {"name": "mistake", "federation": None}


def _is_chain(chain: list[dict[str, Any]]) -> bool:
    hashes = [None, *(hash_of(entry) for entry in chain)]
    return [entry["previous"] for entry in chain] == hashes[:-1]


@pytest.mark.parametrize("order", ["start", "pause", "finish", "revoke"])
def test_a_revoked_persons_waiting_action_is_refused(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str], order: str
) -> None:
    served = serve(fresh_postgres())
    silo = served.enrol(served.federation(), "a")
    federation_id = silo.federation_id
    person = served.admin.post("/v1/tokens", json={"role": "admin", "name": "x"}).json()
    http = served.http(person["token"])
    before = len(entries(served))
    path = f"/v1/federations/{federation_id}"

    def ordering() -> httpx.Response:
        revoking = order == "revoke"
        return http.delete(f"{path}/clients/{silo.client_id}") if revoking else http.post(f"{path}/{order}")

    with ThreadPoolExecutor(1) as pool:
        with served.database.write() as session:
            lock_federation(session, federation_id)
            ordered = pool.submit(ordering)
            wait_until(lambda: _waiting(served.database_url), event="the order waits")
            assert served.admin.delete(f"/v1/tokens/{person['id']}").status_code == 204
        refused = ordered.result(timeout=30)
    assert (refused.status_code, slug(refused)) == (401, "credential-invalid")
    assert [entry["event"] for entry in entries(served)[before:]] == ["person-token-revoked"]


def _waiting(url: str) -> bool:
    """Return whether a connection waits for a lock of a PostgreSQL database."""
    activity = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    return bool(ask(url, f"{activity} AND wait_event_type = 'Lock'")[0][0])


def test_the_audit_log_is_a_chain_despite_concurrency(served: Served) -> None:
    federation_id = served.federation()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: served.enrolment_token(federation_id, f"c{number}"), range(12)))
    chain = entries(served)
    assert [e["number"] for e in chain] == list(range(1, 14))
    assert _is_chain(chain)
    page = served.admin.get("/v1/audit", params={"after": "10", "limit": 2}).json()
    assert [e["number"] for e in page["items"]] == [11, 12]
    assert page["next"] == "12"


def test_the_audit_log_is_readable_by_auditors_only(served: Served) -> None:
    silo = served.enrol(served.federation(), "a")
    assert served.person("auditor").get("/v1/audit").status_code == 200
    assert slug(silo.http.get("/v1/audit")) == "forbidden"
    assert slug(served.http().get("/v1/audit")) == "auth-missing"
    assert slug(served.admin.get("/v1/audit", params={"after": "x"})) == "validation"


def test_the_audit_command_detects_a_removed_entry(served: Served) -> None:
    app = Typer()
    cli.commands(app)
    for number in range(3):
        served.enrolment_token(served.federation(), f"c{number}")

    def audit() -> tuple[int, str]:
        done = CliRunner().invoke(app, ["audit", "--url", served.url, "--token", ADMIN_TOKEN])
        return done.exit_code, done.output + done.stderr

    assert audit()[0] == 0
    assert "6 entries, chain intact" in audit()[1]
    with served.database.write() as session:
        session.execute(text("DELETE FROM audit WHERE number = 3"))
    code, printed = audit()
    assert (code, "broken at entry 3" in printed) == (1, True)
