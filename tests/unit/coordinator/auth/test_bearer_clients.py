"""Clients without a key: accepted if the plan allows them, and shown as bearer clients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scene.coordinator import PROFILE, Served, slug

RETRY_KEY = "q" * 43
BEARER = {"privacy": {"allow_bearer_clients": True}}


def _request(token: str, **changes: Any) -> dict[str, Any]:
    return {"token": token, "name": "a", "profile": PROFILE} | changes


def test_bearer_clients_enrol_if_the_plan_allows_them(coordinator: Served) -> None:
    federation_id = coordinator.federation(**BEARER)
    token, anonymous = coordinator.enrolment_token(federation_id, "a"), coordinator.http()
    created = anonymous.post("/v1/enrolments", json=_request(token)).json()
    assert created["credential"].startswith("tsr_cl_")
    assert coordinator.http(created["credential"]).get("/v1/me").json()["client_id"] == created["client_id"]
    again = anonymous.post("/v1/enrolments", json=_request(token))
    assert (again.status_code, slug(again)) == (401, "enrolment-token-invalid")
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/clients/{created['client_id']}").json()
    assert shown["identity"] == "bearer"
    assert (
        coordinator.admin.delete(
            f"/v1/federations/{federation_id}/clients/{created['client_id']}"
        ).status_code
        == 204
    )
    refused = coordinator.http(created["credential"]).get("/v1/me")
    assert (refused.status_code, slug(refused)) == (401, "credential-invalid")


def test_bearer_clients_are_refused_by_default(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    token = coordinator.enrolment_token(federation_id, "a")
    refused = coordinator.http().post("/v1/enrolments", json=_request(token))
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
    plan = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["plan"]
    assert plan["privacy"]["allow_bearer_clients"] is False


def test_a_retry_key_returns_the_same_enrolment(coordinator: Served) -> None:
    token = coordinator.enrolment_token(coordinator.federation(**BEARER), "a")
    anonymous = coordinator.http()
    first = anonymous.post("/v1/enrolments", json=_request(token, retry_key=RETRY_KEY))
    again = anonymous.post("/v1/enrolments", json=_request(token, retry_key=RETRY_KEY + "="))
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert coordinator.http(first.json()["credential"]).get("/v1/me").status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"retry_key": "z" * 43},
        {"retry_key": None},
        {"retry_key": RETRY_KEY, "name": "b"},
        {"retry_key": RETRY_KEY, "profile": PROFILE | {"layers": 5}},
    ],
    ids=["other key", "no key", "other name", "other profile"],
)
def test_a_used_token_refuses_other_requests(coordinator: Served, change: dict[str, Any]) -> None:
    token = coordinator.enrolment_token(coordinator.federation(**BEARER), "a")
    anonymous = coordinator.http()
    assert anonymous.post("/v1/enrolments", json=_request(token, retry_key=RETRY_KEY)).status_code == 201
    refused = anonymous.post("/v1/enrolments", json=_request(token, **change))
    assert (refused.status_code, slug(refused)) == (401, "enrolment-token-invalid")
