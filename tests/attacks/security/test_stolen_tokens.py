"""Limits of a stolen token of the page: its header, its end, and the present role."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.scene.coordinator import Served, outcome
from tests.scene.openid_provider import CLIENT, NONCE, REDIRECT, VERIFIER, Provider, running_provider
from tests.scene.waiting import wait_until

Serve = Callable[..., Served]
PLAN = {"name": "later", "strategy": {"name": "fedavg"}}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


@pytest.fixture
def database(fresh_database: Callable[[str], str]) -> str:
    return fresh_database("sqlite")


@pytest.fixture
def begin(serve: Serve, database: str, provider: Provider) -> Callable[[str], Served]:
    """Start the coordinator of a database with these roles."""
    settings = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_client_secret": "any"}
    return lambda roles: serve(database, oidc_roles=roles, tick_seconds=0.05, **settings)


def test_a_token_counts_in_the_authorization_header_only(
    begin: Callable[[str], Served], provider: Provider
) -> None:
    served = begin("chiefs=admin")
    provider.know("ada", groups=["chiefs"])
    stored = served.admin.post("/v1/tokens", json={"role": "admin", "name": "x"}).json()["token"]
    for token in (provider.token("ada"), stored):
        assert served.http(token).get("/v1/federations").is_success
        for name in ("session", "access_token"):
            cookie = {"Cookie": f"{name}={token}", "Origin": "https://example.org"}
            for answer in (
                served.http().post("/v1/federations", json=PLAN, headers=cookie),
                served.http().post(f"/v1/federations?{name}={token}", json=PLAN),
                served.http().post("/v1/federations", data={name: token}),
            ):
                assert outcome(answer) == "401 auth-missing"
        twice = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer tsr_adm_none")]
        assert outcome(served.http().get("/v1/federations", headers=twice)) == "401 credential-invalid"
    assert served.admin.get("/v1/federations").json()["items"] == []


def test_an_expired_token_cannot_write_or_stream(begin: Callable[[str], Served], provider: Provider) -> None:
    served = begin("chiefs=admin")
    federation_id = served.federation()
    provider.know("ada", groups=["chiefs"], exp=int(time.time()) - 5)  # the clocks may differ by 30 s
    thief = served.http(provider.token("ada"))
    assert outcome(thief.get(f"/v1/federations/{federation_id}")) == "200"
    for refused in (
        thief.post("/v1/federations", json=PLAN),
        thief.post(f"/v1/federations/{federation_id}/finish"),
        thief.post("/v1/tokens", json={"role": "admin", "name": "for later"}),
        thief.post(f"/v1/federations/{federation_id}/enrolment-tokens", json={"client_name": "mole"}),
    ):
        assert outcome(refused) == "401 credential-invalid"
    with thief.stream("GET", f"/v1/federations/{federation_id}/events") as events:
        assert events.status_code == 200
        served.enrol(federation_id, "aster")
        assert not any("aster" in line for line in events.iter_lines())
    assert served.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "open"


def test_a_withdrawn_role_ends_for_issued_tokens(begin: Callable[[str], Served], provider: Provider) -> None:
    provider.know("ada", groups=["chiefs", "staff"])
    provider.know("ben", groups=["chiefs"])
    ada, ben = provider.token("ada"), provider.token("ben")
    before = begin("chiefs=admin, staff=auditor")
    assert [outcome(before.http(token).get("/v1/tokens")) for token in (ada, ben)] == ["200", "200"]
    before.stop()
    after = begin("staff=auditor")
    assert outcome(after.http(ada).get("/v1/federations")) == "200"
    assert outcome(after.http(ada).post("/v1/federations", json=PLAN)) == "403 forbidden"
    assert outcome(after.http(ben).get("/v1/federations")) == "403 forbidden"


def test_a_revoked_token_ends_with_its_streams(begin: Callable[[str], Served]) -> None:
    served = begin("chiefs=admin")
    federation_id = served.federation()
    created = served.admin.post("/v1/tokens", json={"role": "admin", "name": "page"}).json()
    thief = served.http(created["token"])
    with thief.stream("GET", f"/v1/federations/{federation_id}/events") as events:
        assert events.status_code == 200
        lines = events.iter_lines()
        served.enrol(federation_id, "aster")
        wait_until(lambda: "event: client" in next(lines))
        assert served.admin.delete(f"/v1/tokens/{created['id']}").status_code == 204
        served.enrol(federation_id, "birch")
        assert not any("birch" in line for line in lines)
    assert outcome(thief.get("/v1/federations")) == "401 credential-invalid"


def test_a_stolen_code_needs_nonce_and_redirect_uri(
    begin: Callable[[str], Served], provider: Provider
) -> None:
    served = begin("chiefs=admin")
    provider.know("ada", groups=["chiefs"])
    good = {"code_verifier": VERIFIER, "redirect_uri": REDIRECT, "nonce": NONCE}
    for changes in ({"nonce": "m" * 24}, {"redirect_uri": "https://example.org/"}):
        stolen = {"code": provider.code("ada"), **good, **changes}
        assert outcome(served.http().post("/v1/sign-in", json=stolen)) == "401 credential-invalid"
