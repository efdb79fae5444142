"""What may be claimed, in every mode: exactly these sentences, from the plan and from what was counted."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.served import PROFILE, Served, Silo
from tests.taking_part import PLAN, deliver, running, try_join, values

IDENTITY = {
    False: "Clients sign every request with keys that never leave them",
    True: "bearer credentials: who reads decrypted requests can act as one of these",
}
MEMBERS = {
    "server": "it could invent some",
    "tofu": "only if it takes another's name",
    "pinned": "the coordinator cannot add one unnoticed",
}


@pytest.mark.parametrize(("bearer", "roster"), [*product(IDENTITY, MEMBERS)])
def test_a_federation_claims_what_its_plan_allows_and_nothing_else(
    coordinator: Served, bearer: bool, roster: str
) -> None:
    privacy: dict[str, Any] = {"allow_bearer_clients": bearer, "roster_policy": roster}
    fid = coordinator.federation(privacy=privacy)
    claims = coordinator.admin.get(f"/v1/federations/{fid}").json()["claims"]
    allowed = [
        "server operator is trusted; what clients send is confidential in transit and from other clients",
        IDENTITY[bearer],
        MEMBERS[roster],
        "clipped sketches of gradients without noise",
        "operator sees adapters, scores, counts of examples and bytes",
    ]
    assert len(claims) == len(allowed)
    assert all(fragment in claim for fragment, claim in zip(allowed, claims, strict=True)), claims


def test_a_round_says_who_was_in_fact_behind_its_updates(coordinator: Served) -> None:
    fid, silos = running(coordinator, **PLAN | {"privacy": {"allow_bearer_clients": True}})
    request = {"token": coordinator.enrolment_token(fid, "b"), "name": "b", "profile": PROFILE}
    made = coordinator.http().post("/v1/enrolments", json=request).json()
    bearer = Silo(made["client_id"], fid, silos[0].key, coordinator.http(made["credential"]))
    for silo in (*silos, bearer):
        assert try_join(silo, 1).status_code == 200
    before = _claims(coordinator, fid)
    assert before == coordinator.admin.get(f"/v1/federations/{fid}").json()["claims"]
    deliver(silos[0], 1, values(1.0))
    assert _claims(coordinator, fid) == [*before, "Of 1 updates, all were signed with keys of their clients."]
    deliver(bearer, 1, values(1.0))
    assert _claims(coordinator, fid) == [*before, "Of 2 updates, 1 came with bearer credentials."]


def _claims(coordinator: Served, fid: str) -> list[str]:
    found: list[str] = coordinator.admin.get(f"/v1/federations/{fid}/rounds/1").json()["claims"]
    return found
