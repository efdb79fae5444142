"""A summed round over HTTP, from join to publication: who may take part, and the served weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.messages.secure_sum import CAPABILITY
from schemas.secure_sum.encoding import largest_encoded
from schemas.secure_sum.segments import values_digest
from tests.scene.coordinator import PROFILE, Served, Silo, slug
from tests.scene.operator import Operator
from tests.scene.rounds import running, scored, show, try_join, url, weights
from tests.scene.sums_in_clear import CLIP, LOSSES, ORDER, sum_up, summed


def test_members_and_newcomers_are_served_the_summed_model(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 4, **summed())
    changes = [0.4, -0.2, 0.6, 0.1]
    published = sum_up(coordinator, federation_id, silos, changes)
    late = coordinator.enrol(federation_id, "late")
    bodies = []
    for silo in [*silos, late]:
        assert try_join(silo, 2).status_code == 200
        bodies.append(weights(silo, 2))
    for body in bodies:
        for name in ORDER:
            np.testing.assert_allclose(body[name], np.mean(changes), atol=CLIP / largest_encoded(16) + 1e-6)
            np.testing.assert_array_equal(body[name], bodies[0][name])
    digest = values_digest(bodies[-1], {name: bodies[-1][name].shape for name in ORDER})
    for silo in (silos[0], late):
        base = try_join(silo, 2).json()["weights"]["digest"]
        ready = silo.http.put(
            url(silo, 2, "/ready"), json={"base": base, "values": digest, "format": CAPABILITY}
        )
        assert ready.status_code == 201, ready.text
    _shows_means_only(coordinator, federation_id, silos, published)


def _shows_means_only(
    served: Served, federation_id: str, silos: list[Silo], published: dict[str, Any]
) -> None:
    served_loss, trained_loss = (pytest.approx(mean, abs=1e-3) for mean in np.mean(LOSSES, axis=0))
    assert published["scores"] == {"mean": {"loss": {"value": trained_loss, "count": 4}}, "worst": None}
    assert published["secure_sum"]["losses"] == {
        "served": {"value": served_loss, "count": 4},
        "trained": {"value": trained_loss, "count": 4},
    }
    assert all(client["scores"] is None for client in published["clients"])
    assert any("4 members are ready for the sum of this round or in it" in c for c in published["claims"])
    listed = served.admin.get(f"/v1/federations/{federation_id}/rounds").json()["items"]
    assert listed[-1]["scores"] == published["scores"]
    own = silos[0].http.get(url(silos[0], 1)).json()
    assert own["scores"]["mean"]["loss"] == {"value": trained_loss, "count": 4}
    assert len(own["clients"]) == 1
    output = " ".join(Operator(served, columns=80)("round", "show", federation_id, "1").splitlines())
    assert "sum session 1: done, 4 members; answered: masked 4" in output
    assert "the sum has the updates of 4 members; mean loss: served 2.5" in output
    assert "A member can add anything to a sum" in output
    relevance = served.admin.get(f"/v1/federations/{federation_id}/rounds/1/relevance")
    assert relevance.status_code == 404
    refused = silos[0].http.put(url(silos[0], 1, "/scores"), json=scored({"loss": 1.0}))
    assert (refused.status_code, slug(refused)) == (409, "secure-sum-required")


def test_mean_scores_of_two_others_are_hidden(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 3, **summed(3))
    published = sum_up(coordinator, federation_id, silos, [0.1, 0.1, 0.1])
    assert published["scores"]["mean"]["loss"]["count"] == 3
    own = silos[0].http.get(url(silos[0], 1)).json()
    assert own["scores"] is None
    assert own["secure_sum"]["losses"] is None


def test_own_scores_are_accepted_if_the_plan_allows(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 3, **summed(3, scores="own"))
    assert try_join(silos[0], 1).status_code == 200
    sent = silos[0].http.put(url(silos[0], 1, "/scores"), json=scored({"loss": 1.0}))
    assert sent.status_code == 204
    assert show(coordinator, federation_id, 1)["scores"]["worst"] is not None


@pytest.mark.parametrize(
    "profile",
    [{"roles": ["q"]}, {"base_model": "other-s-3f0c9a1b2c3d"}],
    ids=["other modules", "another base model"],
)
def test_clients_of_another_layout_cannot_join_a_sum(coordinator: Served, profile: dict[str, Any]) -> None:
    changed_plan = summed() | {"adapter": {"rank": 2, "blocks": 1, "roles": ["q", "v"]}}
    federation_id, silos = running(coordinator, 2, **changed_plan)
    stranger = coordinator.enrol(federation_id, "other", **profile)
    assert try_join(silos[0], 1).status_code == 200
    refused = try_join(stranger, 1)
    assert (refused.status_code, slug(refused)) == (422, "layout-mismatch")
    assert refused.json()["base_model"] == PROFILE["base_model"]
    assert try_join(silos[1], 1).status_code == 200
    # Who joined first decides only while it is a member.
    for silo in silos:
        coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}")
    assert try_join(stranger, 1).status_code == 200


def test_agents_without_secure_sums_are_not_enrolled(coordinator: Served) -> None:
    federation_id = coordinator.federation(**summed())
    token = coordinator.enrolment_token(federation_id, "one")
    refused = coordinator.try_enrol(token, "one", capabilities=[])
    assert (refused.status_code, slug(refused)) == (426, "capability-missing")
    assert refused.json()["needed"] == "secure-sum-3"
    assert "newer agent" in refused.json()["detail"].replace("\n", " ")
    coordinator.enrol_over_http(coordinator.federation(), "one", capabilities=[])


def test_a_bearer_client_is_not_enrolled(coordinator: Served) -> None:
    federation_id = coordinator.federation(**summed())
    token = coordinator.enrolment_token(federation_id, "bearer")
    request = {"token": token, "name": "bearer", "profile": PROFILE}
    refused = coordinator.http().post("/v1/enrolments", json=request)
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
