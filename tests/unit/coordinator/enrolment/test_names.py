"""Names over HTTP: a federation uses one spelling of a name, on both databases."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.scene.coordinator import Served, enrolment, slug


def request_token(served: Served, federation_id: str, name: str, **request: object) -> httpx.Response:
    path = f"/v1/federations/{federation_id}/enrolment-tokens"
    return served.admin.post(path, json={"client_name": name} | request)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("scope ", "is the same as"),
        ("ＳＣＯＰＥ", "differs only in upper and lower case from"),
        ("ѕсоре", "looks like"),
    ],
    ids=ascii,
)
def test_a_client_name_is_taken_in_all_spellings(coordinator: Served, name: str, how: str) -> None:
    federation_id = coordinator.federation()
    coordinator.enrol(federation_id, "scope")
    refused = request_token(coordinator, federation_id, name)
    assert (refused.status_code, slug(refused), refused.json()["taken"]) == (
        409,
        "client-name-taken",
        "scope",
    )
    assert f"the name {how} 'scope', which is in use" in refused.json()["detail"]
    assert request_token(coordinator, coordinator.federation(), name).status_code == 201


def test_an_unused_token_of_another_spelling_is_replaced(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    lost = coordinator.enrolment_token(federation_id, "Aster", organisation="Clinc")
    assert request_token(coordinator, federation_id, "ASTER").status_code == 409
    replaced = request_token(coordinator, federation_id, "aster", replace=True, organisation="clinc")
    assert replaced.status_code == 201, "nothing uses the names of the lost token"
    for token, name, status in ((lost, "Aster", 401), (replaced.json()["token"], " aster ", 201)):
        answer = coordinator.try_enrol(token, name)
        assert answer.status_code == status, answer.text
    (client,) = coordinator.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    assert (client["name"], client["organisation"]) == ("aster", "clinc")


@pytest.mark.parametrize("name", ["../x", "..", "aster/1", "аster"], ids=ascii)
def test_malformed_names_are_refused_on_all_routes(coordinator: Served, name: str) -> None:
    federation_id = coordinator.federation()
    tokens = f"/v1/federations/{federation_id}/enrolment-tokens"
    anonymous, token = coordinator.http(), coordinator.enrolment_token(federation_id, "a")
    plan = {"name": name, "strategy": {"name": "fedavg"}}
    requests: list[tuple[httpx.Client, str, dict[str, object], str]] = [
        (coordinator.admin, tokens, {"client_name": name}, "client_name"),
        (coordinator.admin, tokens, {"client_name": name, "replace": True}, "client_name"),
        (coordinator.admin, tokens, {"client_name": "b", "organisation": name}, "organisation"),
        (coordinator.admin, "/v1/federations", plan, "name"),
        (coordinator.admin, "/v1/tokens", {"role": "auditor", "name": name}, "name"),
        (
            anonymous,
            "/v1/enrolments",
            enrolment(anonymous, token, name, Ed25519PrivateKey.generate()),
            "name",
        ),
    ]
    for http, path, body, field in requests:
        answer = http.post(path, json=body)
        assert (answer.status_code, slug(answer), answer.json()["field"]) == (422, "validation", field)
        assert name not in answer.text


def test_organisations_have_a_single_spelling(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    assert request_token(coordinator, federation_id, "a", organisation="Scope").status_code == 201
    assert request_token(coordinator, federation_id, "b", organisation=" Scope ").status_code == 201
    for spelling in ("SCOPE", "Ѕсоре"):
        refused = request_token(coordinator, federation_id, "c", organisation=spelling)
        assert (refused.status_code, slug(refused)) == (409, "name-looks-alike")
        assert refused.json()["taken"] == "Scope"
        assert "write it as 'Scope'" in refused.json()["detail"]
    assert request_token(coordinator, federation_id, "c").status_code == 201, "the refusal reserved no name"


def test_federations_have_a_single_spelling(coordinator: Served) -> None:
    name = f"Trial {secrets.token_hex(8)}"
    assert coordinator.federation(name=name) != coordinator.federation(name=f"  {name} ")
    plan = {"name": name.upper(), "strategy": {"name": "fedavg"}}
    refused = coordinator.admin.post("/v1/federations", json=plan)
    assert (refused.status_code, slug(refused), refused.json()["taken"]) == (409, "name-looks-alike", name)


def test_concurrent_token_names_get_one_spelling(coordinator: Served) -> None:
    name = f"dpo@clinic-{secrets.token_hex(4)}"
    spellings = [name, name.upper(), name.title(), name.capitalize()] * 2
    with ThreadPoolExecutor(len(spellings)) as threads:
        answers = list(
            threads.map(
                lambda spelling: coordinator.admin.post(
                    "/v1/tokens", json={"role": "auditor", "name": spelling}
                ),
                spellings,
            )
        )
    created = [answer.json() for answer in answers if answer.status_code == 201]
    assert len(created) == 2
    assert len({token["name"] for token in created}) == 1
    assert {slug(answer) for answer in answers if answer.status_code != 201} == {"name-looks-alike"}
    for token in created:
        assert coordinator.admin.delete(f"/v1/tokens/{token['id']}").status_code == 204
    loser = next(spelling for spelling in spellings if spelling != created[0]["name"])
    answer = coordinator.admin.post("/v1/tokens", json={"role": "auditor", "name": loser})
    assert answer.status_code == 201, "a revoked token uses no name"
