"""People sign in at an identity provider and have the roles of their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import jwt
import pytest
from pydantic import ValidationError

from coordinator.auth.oidc import provider_of, require_issuer
from coordinator.auth.provider_requests import ProviderDown
from coordinator.auth.revalidation import Credential, still_valid
from coordinator.errors import SettingsUnusable
from coordinator.settings import Settings
from tests.scene.coordinator import Served, slug
from tests.scene.openid_provider import CLIENT, NONCE, REDIRECT, VERIFIER, Provider, running_provider

Serve = Callable[..., Served]
AUDIT = "/v1/audit"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        running.know("ada", groups=["chiefs", "staff"], preferred_username="Ada")
        running.know("ben", groups=["ward"])
        running.know("eve", groups=["visitors"])
        yield running


@pytest.fixture
def served(serve: Serve, fresh_database: Callable[[str], str], provider: Provider) -> Served:
    """A coordinator with two federations; the group `ward` has a role in the first."""
    url = fresh_database("sqlite")
    before = serve(url)
    first = before.federation(name="first")
    before.federation(name="second")
    before.stop()
    roles = f"chiefs=operator, staff=auditor, ward=operator@{first}"
    settings = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT, "oidc_client_secret": "any"}
    return serve(url, oidc_roles=roles, **settings)


def federations(http: httpx.Client) -> list[str]:
    return [shown["id"] for shown in http.get("/v1/federations").json()["items"]]


def request(provider: Provider, subject: str, **changes: str) -> dict[str, str]:
    code = provider.code(subject)
    return {"code": code, "code_verifier": VERIFIER, "redirect_uri": REDIRECT, "nonce": NONCE} | changes


def test_people_have_the_highest_role_of_their_groups(served: Served, provider: Provider) -> None:
    ada = served.http(provider.token("ada"))
    assert len(federations(ada)) == 2
    third = ada.post("/v1/federations", json={"name": "third", "strategy": {"name": "fedavg"}})
    assert third.status_code == 201
    assert slug(ada.get("/v1/tokens")) == "forbidden"
    entry = ada.get(AUDIT).json()["items"][-1]
    assert (entry["event"], entry["subject"]) == ("federation-created", third.json()["id"])
    assert entry["actor"].startswith("oidc_")
    assert ada.get("/metrics").status_code == 200


def test_a_federations_role_is_limited_to_it(served: Served, provider: Provider) -> None:
    first, second = federations(served.admin)
    ben = served.http(provider.token("ben"))
    assert federations(ben) == [first]
    path = f"/v1/federations/{first}"
    assert ben.post(f"{path}/enrolment-tokens", json={"client_name": "aster"}).status_code == 201
    assert ben.get(f"{path}/clients").status_code == 200
    for refused in (
        ben.get(f"/v1/federations/{second}"),
        ben.get(f"/v1/federations/{second}/plan"),
        ben.get(f"/v1/federations/{second}/events"),
        ben.post(f"/v1/federations/{second}/start"),
        ben.post("/v1/federations", json={"name": "third", "strategy": {"name": "fedavg"}}),
        ben.get(AUDIT),
        ben.get("/v1/tokens"),
        ben.get("/metrics"),
    ):
        assert (refused.status_code, slug(refused)) == (403, "forbidden"), refused.url


def test_a_person_without_a_role_is_refused(served: Served, provider: Provider) -> None:
    refused = served.http(provider.token("eve")).get("/v1/federations")
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
    assert "No group of yours" in refused.json()["detail"]


@pytest.mark.slow
def test_tokens_of_other_issuers_or_audiences_are_invalid(served: Served, provider: Provider) -> None:
    good = provider.token("ada")
    header, claims = jwt.get_unverified_header(good), jwt.decode(good, options={"verify_signature": False})
    body, signature = good.rsplit(".", 1)
    with running_provider() as elsewhere:
        elsewhere.know("ada", groups=["chiefs"])
        refused = {
            "audience": provider.token("ada", client="another"),
            "issuer": elsewhere.token("ada"),
            "shared secret": jwt.encode(claims, "s" * 32, "HS256", headers=header | {"alg": "HS256"}),
            "changed": f"{body}.{signature[:-4]}AAAA",
            "malformed": "eyJ.e.x",
        }
        for reason, token in refused.items():
            answer = served.http(token).get("/v1/federations")
            assert (answer.status_code, slug(answer)) == (401, "credential-invalid"), reason
    assert served.http(good).get("/v1/federations").status_code == 200


@pytest.mark.slow
def test_an_expired_id_token_is_invalid(serve: Serve, fresh_database: Callable[[str], str]) -> None:
    with running_provider("--token-max-age", "-100") as late:
        late.know("ada", groups=["chiefs"])
        settings = {"oidc_issuer": late.issuer, "oidc_client_id": CLIENT, "oidc_roles": "chiefs=admin"}
        served = serve(fresh_database("sqlite"), **settings)
        assert slug(served.http(late.token("ada")).get("/v1/federations")) == "credential-invalid"
    now = datetime.now(UTC)
    past, future = (Credential("oidc_a", "digest", now + timedelta(minutes=m)) for m in (-1, 1))
    with served.database.read() as session:
        valid = still_valid(session, set(), {past, future, Credential("tok_x")})
    assert valid == {future}


def test_a_code_is_exchanged_once_for_a_token(served: Served, provider: Provider) -> None:
    anonymous = served.http()
    shown = anonymous.get("/v1/sign-in").json()
    assert shown["authorization_endpoint"] == f"{provider.issuer}/oauth2/authorize"
    assert shown["client_id"] == CLIENT
    exchange = request(provider, "ben")
    signed = anonymous.post("/v1/sign-in", json=exchange)
    assert signed.status_code == 200
    assert signed.headers["cache-control"] == "no-store"
    person = signed.json()
    assert (person["role"], list(person["federations"].values())) == (None, ["operator"])
    assert len(federations(served.http(person["token"]))) == 1
    for refused in (exchange, request(provider, "ben", nonce="m" * 24), request(provider, "ben", code="no")):
        answer = anonymous.post("/v1/sign-in", json=refused)
        assert (answer.status_code, slug(answer)) == (401, "credential-invalid")


def test_an_unavailable_provider_affects_only_its_people(
    serve: Serve, fresh_database: Callable[[str], str], provider: Provider
) -> None:
    settings = {"oidc_issuer": "http://127.0.0.1:9", "oidc_client_id": CLIENT, "oidc_roles": "chiefs=admin"}
    served = serve(fresh_database("sqlite"), **settings)
    for answer in (
        served.http(provider.token("ada")).get("/v1/federations"),
        served.http().get("/v1/sign-in"),
    ):
        assert (answer.status_code, slug(answer)) == (503, "identity-provider")
    assert served.admin.get("/v1/federations").status_code == 200


def test_wrong_issuer_is_named_with_its_remedy(provider: Provider) -> None:
    settings = {"oidc_client_id": CLIENT, "oidc_roles": "chiefs=admin"}
    wrong = f"{provider.issuer}/"
    named = rf"at {wrong} names itself {provider.issuer}; set TESSERA_OIDC_ISSUER={provider.issuer}$"
    with pytest.raises(SettingsUnusable, match=named):
        require_issuer(Settings(oidc_issuer=wrong, **settings))
    identity_provider = provider_of(Settings(oidc_issuer=wrong, **settings))
    assert identity_provider is not None
    with pytest.raises(ProviderDown, match=named):
        identity_provider.metadata()
    require_issuer(Settings(oidc_issuer=provider.issuer, **settings))
    require_issuer(Settings(oidc_issuer="http://127.0.0.1:9", **settings))  # one that is down may be right
    require_issuer(Settings())


def test_an_unavailable_provider_is_retried_after_ten_seconds(provider: Provider) -> None:
    settings = {"oidc_client_id": CLIENT, "oidc_roles": "chiefs=admin"}
    identity_provider = provider_of(Settings(oidc_issuer="http://127.0.0.1:9", **settings))
    assert identity_provider is not None
    now = 0.0
    identity_provider.clock = lambda: now
    with pytest.raises(ProviderDown):
        identity_provider.metadata()
    identity_provider.issuer = provider.issuer  # it is back
    with pytest.raises(ProviderDown):
        identity_provider.metadata()
    now = 11.0
    assert identity_provider.metadata()["issuer"] == provider.issuer


def test_code_exchanges_have_a_maximum_concurrency(provider: Provider) -> None:
    settings = {"oidc_client_id": CLIENT, "oidc_client_secret": "any", "oidc_roles": "chiefs=admin"}
    identity_provider = provider_of(Settings(oidc_issuer=provider.issuer, **settings))
    assert identity_provider is not None
    count = 0
    while identity_provider._exchanges.acquire(blocking=False):
        count += 1
    assert count == 4
    with pytest.raises(ProviderDown):
        identity_provider.redeem(provider.code("ada"), verifier=VERIFIER, redirect_uri=REDIRECT)
    identity_provider._exchanges.release()
    token = identity_provider.redeem(provider.code("ada"), verifier=VERIFIER, redirect_uri=REDIRECT)
    assert identity_provider.person(token).name == "Ada"


def test_sign_in_is_not_found_without_a_provider(coordinator: Served, provider: Provider) -> None:
    assert slug(coordinator.http().get("/v1/sign-in")) == "not-found"
    assert slug(coordinator.http(provider.token("ada")).get("/v1/federations")) == "credential-invalid"


@pytest.mark.parametrize("roles", ["chiefs", "chiefs=chief", "=admin", "ward=operator@"])
def test_malformed_roles_are_refused(roles: str) -> None:
    with pytest.raises(ValidationError, match="group=role"):
        Settings(oidc_roles=roles)


def test_a_provider_needs_https_a_client_and_roles() -> None:
    with pytest.raises(ValidationError, match="https://"):
        Settings(oidc_issuer="http://id.example.org")
    with pytest.raises(SettingsUnusable, match="TESSERA_OIDC_ROLES"):
        provider_of(Settings(oidc_issuer="https://id.example.org", oidc_client_id=CLIENT))
