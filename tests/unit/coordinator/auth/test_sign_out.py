"""Sign-out of people: the ID token is refused afterwards, by all replicas, with either signature."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from sqlalchemy import func, select, update
from typer import Typer
from typer.testing import CliRunner

from coordinator import cli
from coordinator.auth import sign_outs
from coordinator.auth.authentication import Person, still_person
from coordinator.auth.revalidation import credential_of, still_valid
from coordinator.db.engine import database_time
from coordinator.db.tables.identity import SignedOutTokenRow
from coordinator.errors import CredentialInvalid
from tests.scene.coordinator import ADMIN_TOKEN, Served, outcome, slug
from tests.scene.database import row_count
from tests.scene.openid_provider import CLIENT, Provider, running_provider
from tests.scene.waiting import wait_until

Serve = Callable[..., Served]
SIGN_IN = "/v1/sign-in"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        running.know("ada", groups=["chiefs"])
        running.know("ben", groups=["ward"])
        yield running


@pytest.fixture
def settings(provider: Provider) -> dict[str, str]:
    roles = "chiefs=operator, ward=auditor@fed_none"
    return {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_roles": roles}


@pytest.fixture
def served(serve: Serve, database_url: str, settings: dict[str, str]) -> Served:
    return serve(database_url, **settings)


def list_outcome(served: Served, token: str) -> str:
    return outcome(served.http(token).get("/v1/federations"))


def test_signed_out_tokens_are_refused_by_all_replicas(
    served: Served,
    serve: Serve,
    database_url: str,
    settings: dict[str, str],
    provider: Provider,
    backend: str,
) -> None:
    token, later = provider.token("ada"), provider.token("ada")
    assert outcome(served.http(token).delete(SIGN_IN)) == "204"
    if backend == "sqlite":  # of which one process is the only replica
        served.stop()
    for replica in (serve(database_url, **settings), *([served] if backend == "postgres" else [])):
        refused = replica.http(token).get("/v1/federations")
        assert outcome(refused) == "401 credential-invalid"
        assert refused.json()["detail"] == "This sign-in has ended; sign in again."
        assert outcome(replica.http(token).delete(SIGN_IN)) == "401 credential-invalid"
        assert list_outcome(replica, later) == "200", "another sign-in of the person goes on"
    entries = replica.admin.get("/v1/audit").json()["items"]
    (entry,) = [entry for entry in entries if entry["event"] == "person-signed-out"]
    assert entry["actor"] == entry["subject"]
    assert entry["actor"].startswith("oidc_")


def test_people_of_a_single_federation_can_sign_out(served: Served, provider: Provider) -> None:
    ben = provider.token("ben")
    assert outcome(served.http(ben).delete(SIGN_IN)) == "204"
    assert list_outcome(served, ben) == "401 credential-invalid"


def test_coordinator_tokens_and_clients_cannot_sign_out(served: Served) -> None:
    silo = served.enrol(served.federation(), "aster")
    for caller in (served.admin, served.person("auditor"), silo.http):
        assert outcome(caller.delete(SIGN_IN)) == "403 forbidden"
    assert outcome(served.http().delete(SIGN_IN)) == "401 auth-missing"
    assert outcome(served.admin.get("/v1/federations")) == "200"
    assert row_count(served.database, SignedOutTokenRow) == 0


def test_mirrored_ecdsa_signatures_have_one_digest() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    token = jwt.encode({"sub": "ada"}, key, "ES256")
    text, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    r, s = int.from_bytes(raw[:32]), int.from_bytes(raw[32:])
    assert utils.encode_dss_signature(r, s) != utils.encode_dss_signature(r, order - s)
    mirrored = base64.urlsafe_b64encode(raw[:32] + (order - s).to_bytes(32)).decode().rstrip("=")
    again = f"{text}.{mirrored}"
    assert jwt.decode(again, key.public_key(), ["ES256"]) == {"sub": "ada"}
    assert sign_outs.digest_of(again) == sign_outs.digest_of(token)


def test_open_streams_end_with_the_sign_in(served: Served, provider: Provider) -> None:
    federation_id = served.federation()
    ada = served.http(provider.token("ada"))
    with ada.stream("GET", f"/v1/federations/{federation_id}/events") as events:
        lines = events.iter_lines()
        served.enrol(federation_id, "aster")
        wait_until(lambda: "event: client" in next(lines))
        assert outcome(ada.delete(SIGN_IN)) == "204"
        served.enrol(federation_id, "birch")
        assert not any("birch" in line for line in lines)


def test_signed_out_people_are_refused_inside_a_transaction(served: Served) -> None:
    with served.database.write() as session:
        end = database_time(session) + timedelta(hours=1)
        ada = Person("oidc_a", "admin", "Ada", expires_at=end, token_digest="a" * 64)
        again = replace(ada, token_digest="b" * 64)
        still_person(session, ada)
        assert sign_outs.add(session, "a" * 64, end)
        assert not sign_outs.add(session, "a" * 64, end), "once is enough"
        with pytest.raises(CredentialInvalid, match="sign in again"):
            still_person(session, ada)
        still_person(session, again)
        people = {credential_of(ada), credential_of(again)}
        assert still_valid(session, set(), people) == {credential_of(again)}


def test_rows_of_expired_tokens_are_deleted(served: Served, provider: Provider) -> None:
    for _ in range(2):
        assert outcome(served.http(provider.token("ada")).delete(SIGN_IN)) == "204"
    with served.database.write() as session:
        first = select(func.min(SignedOutTokenRow.digest)).scalar_subquery()
        past = database_time(session) - timedelta(hours=2)
        old = update(SignedOutTokenRow).where(SignedOutTokenRow.digest == first)
        session.execute(old.values(expires_at=past))
    assert sign_outs.delete_expired(served.database) == 1
    assert sign_outs.delete_expired(served.database) == 0
    assert row_count(served.database, SignedOutTokenRow) == 1


def test_the_sign_out_command_ends_its_own_token(served: Served, provider: Provider) -> None:
    app = Typer()
    cli.commands(app)
    token = provider.token("ada")
    for credential, code, shown in (
        (token, 0, "Signed out"),
        (token, 1, "sign in again"),
        (ADMIN_TOKEN, 1, "an admin revokes it"),
    ):
        command = ["token", "sign-out", "--url", served.url, "--token", credential]
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, shown in done.output + done.stderr) == (code, True), done.output + done.stderr


def test_sign_out_needs_a_credential_without_a_provider(coordinator: Served) -> None:
    answer = coordinator.http().delete(SIGN_IN)
    assert (answer.status_code, slug(answer)) == (401, "auth-missing")
