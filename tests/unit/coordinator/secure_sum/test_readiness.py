"""`PUT .../ready`: who may report readiness, once, and its effect on the round."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from coordinator.enrolment.eligibility import check_enrolled_capability
from coordinator.errors import CapabilityMissing
from schemas.maths.adapter import in_order
from schemas.messages.enrolment import Profile
from schemas.messages.secure_sum import CAPABILITY
from schemas.secure_sum.segments import values_digest
from tests.scene.coordinator import PROFILE, Served, Silo, slug
from tests.scene.rounds import PLAN, plan, running, show, url
from tests.scene.waiting import wait_until

ZEROS = {"b0.q.P": np.zeros((2, 2), np.float32), "b0.q.Q": np.zeros(2, np.float32)}
VALUES = values_digest(ZEROS, in_order({name: zeros.shape for name, zeros in ZEROS.items()}))
OTHER = f"sha256:{'1' * 64}"


def summed(**changes: Any) -> dict[str, Any]:
    """Return a plan of two clients whose updates are summed in clear."""
    secure_sum = {"masking": "none", "minimum": 2, **changes}
    return plan(privacy={"secure_sum": secure_sum})


def join(silo: Silo, number: int = 1) -> str:
    """Join a round; return the digest of the weights."""
    joined = silo.http.post(url(silo, number, "/join"))
    assert joined.status_code == 200, joined.text
    return str(joined.json()["weights"]["digest"])


def put_ready(silo: Silo, base: str, values: str = VALUES, number: int = 1) -> httpx.Response:
    return silo.http.put(
        url(silo, number, "/ready"), json={"base": base, "values": values, "format": CAPABILITY}
    )


def states(view: dict[str, Any]) -> list[str]:
    return sorted(client["state"] for client in view["clients"])


def test_a_round_is_summed_after_all_are_ready(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 2, **summed())
    bases = [join(silo) for silo in silos]
    first = put_ready(silos[0], bases[0])
    assert first.status_code == 201, first.text
    assert first.json()["client"] == silos[0].client_id
    again = put_ready(silos[0], bases[0])
    assert (again.status_code, again.json()) == (200, first.json())
    view = show(coordinator, federation_id, 1)
    assert view["state"] == "collecting"
    assert states(view) == ["joined", "ready"]
    assert view["counts"] == {"joined": 2, "arrived": 1, "late": 0, "dropped": 0, "rejected": 0}
    assert silos[0].http.get(f"/v1/federations/{federation_id}/rounds/current").status_code == 204
    assert put_ready(silos[1], bases[1]).status_code == 201
    view = show(coordinator, federation_id, 1)
    assert view["state"] == "summing"
    assert {"open", "collecting", "summing"} <= set(view["seconds"])
    assert view["clients"][0]["received_at"] is not None
    assert put_ready(silos[0], bases[0]).status_code == 200
    late = coordinator.enrol(federation_id, "late")
    closed = late.http.post(url(late, 1, "/join"))
    assert (closed.status_code, slug(closed)) == (409, "round-closed")


def test_readiness_from_other_weights_is_refused(coordinator: Served) -> None:
    _, silos = running(coordinator, 2, **summed())
    base = join(silos[0])
    other_base, other_values = put_ready(silos[0], OTHER), put_ready(silos[0], base, OTHER)
    assert [slug(answer) for answer in (other_base, other_values)] == ["base-mismatch"] * 2
    assert (other_base.json()["base"], other_values.json()["values"]) == (base, VALUES)
    assert put_ready(silos[0], base).status_code == 201


def test_readiness_needs_a_join_of_an_open_round(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 3, **summed())
    bases = [join(silo) for silo in silos[:2]]
    absent = put_ready(silos[2], bases[0])
    assert (absent.status_code, slug(absent)) == (409, "not-joined")
    unknown = put_ready(silos[0], bases[0], number=2)
    assert (unknown.status_code, slug(unknown)) == (404, "not-found")
    base = join(silos[2])
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[2].client_id}")
    assert put_ready(silos[2], base).status_code == 401
    for silo, own in zip(silos[:2], bases, strict=True):
        assert put_ready(silo, own).status_code == 201
    assert show(coordinator, federation_id, 1)["state"] == "summing"


def test_readiness_after_the_deadline_is_late(coordinator: Served) -> None:
    rounds = PLAN["rounds"] | {"min_clients": 3, "quorum": 2, "collect_seconds": 1}
    federation_id, silos = running(coordinator, 3, **(summed() | {"rounds": rounds}))
    bases = [join(silo) for silo in silos]
    for silo, base in zip(silos[:2], bases, strict=False):
        assert put_ready(silo, base).status_code == 201
    wait_until(lambda: show(coordinator, federation_id, 1)["state"] == "summing")
    for _ in range(2):
        late = put_ready(silos[2], bases[2])
        assert (late.status_code, slug(late)) == (409, "round-closed")
    assert states(show(coordinator, federation_id, 1)) == ["late", "ready", "ready"]


def test_a_revoked_client_does_not_count_as_ready(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 3, **summed())
    bases = [join(silo) for silo in silos]
    for silo, base in zip(silos[:2], bases, strict=False):
        assert put_ready(silo, base).status_code == 201
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silos[0].client_id}")
    view = show(coordinator, federation_id, 1)
    assert (view["state"], states(view)) == ("collecting", ["joined", "ready", "revoked"])
    assert put_ready(silos[2], bases[2]).status_code == 201
    assert show(coordinator, federation_id, 1)["state"] == "summing"


def test_an_organisation_has_one_client_in_a_sum(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 1, **summed())
    colleagues = [
        coordinator.enrol(federation_id, f"clinic-{n}", organisation=spelling)
        for n, spelling in enumerate(("Clinic", " Ｃｌｉｎｉｃ "))
    ]
    bases = [join(silo) for silo in colleagues]
    assert put_ready(colleagues[0], bases[0]).status_code == 201
    taken = put_ready(colleagues[1], bases[1])
    assert (taken.status_code, slug(taken)) == (409, "organisation-taken")
    coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{colleagues[0].client_id}")
    assert put_ready(colleagues[1], bases[1]).status_code == 201
    assert put_ready(silos[0], join(silos[0])).status_code == 201
    assert show(coordinator, federation_id, 1)["state"] == "summing"


def test_plans_may_allow_several_clients_per_organisation(coordinator: Served) -> None:
    federation_id = coordinator.federation(**summed(one_per_organisation=False))
    colleagues = [coordinator.enrol(federation_id, f"clinic-{n}", organisation="clinic") for n in range(2)]
    coordinator.start_federation(federation_id)
    bases = [join(silo) for silo in colleagues]
    for silo, base in zip(colleagues, bases, strict=True):
        assert put_ready(silo, base).status_code == 201


def test_readiness_is_refused_without_a_secure_sum(coordinator: Served) -> None:
    _, silos = running(coordinator, 2)
    refused = put_ready(silos[0], join(silos[0]))
    assert (refused.status_code, slug(refused)) == (409, "no-secure-sum")


def test_summed_rounds_refuse_updates_before_the_body(coordinator: Served) -> None:
    _, silos = running(coordinator, 2, **summed())
    join(silos[0])
    refused = silos[0].http.put(url(silos[0], 1, "/update"), content=b"not even an adapter")
    assert (refused.status_code, slug(refused)) == (409, "secure-sum-required")


def test_a_client_of_another_format_is_refused(coordinator: Served) -> None:
    _, silos = running(coordinator, 2, **summed())
    base = join(silos[0])
    for spoken in ("secure-sum-1", "secure-sum-2"):
        sent = {"base": base, "values": VALUES, "format": spoken}
        refused = silos[0].http.put(url(silos[0], 1, "/ready"), json=sent)
        assert (refused.status_code, slug(refused)) == (426, "capability-missing")
        assert refused.json()["needed"] == CAPABILITY
    assert put_ready(silos[0], base).status_code == 201


def test_members_of_earlier_formats_may_join() -> None:
    profile = Profile.model_validate(PROFILE)
    for capabilities in (["secure-sum-1"], ["secure-sum-2"], ["secure-sum-3"]):
        check_enrolled_capability(profile.model_copy(update={"capabilities": capabilities}))
    with pytest.raises(CapabilityMissing):
        check_enrolled_capability(profile.model_copy(update={"capabilities": []}))


@pytest.mark.parametrize(
    "body", [{}, {"base": OTHER, "values": OTHER}, {"base": "x", "values": OTHER, "format": "x"}]
)
def test_a_malformed_readiness_body_is_refused(coordinator: Served, body: dict[str, str]) -> None:
    _, silos = running(coordinator, 2, **summed())
    join(silos[0])
    refused = silos[0].http.put(url(silos[0], 1, "/ready"), json=body)
    assert (refused.status_code, slug(refused)) == (422, "validation")
