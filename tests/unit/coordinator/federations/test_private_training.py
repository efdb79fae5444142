"""Private training: accepted plans and agents, and the claims about it."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.federations.claims import federation_claims
from coordinator.strategies.opening import open_plan
from schemas.messages.federations import FederationPlan
from schemas.messages.private_training import CAPABILITY
from schemas.strategies.registry import strategy_names
from tests.scene.coordinator import Served, slug
from tests.scene.plans import federation_plan
from tests.scene.rounds import PLAN, join, put, show, update_body, values

LORA = {"kind": "lora", "rank": 4, "roles": ["q"]}
ONLY_STEPS = {"fedavg", "fedprox", "fedmosaic", "fedsa_lora", "ffa_lora", "flora", "fedex_lora", "lora_fair"}


def private_plan(name: str, **changes: Any) -> dict[str, Any]:
    adapter = {} if name == "fedmosaic" else LORA
    return {
        "name": "a",
        "strategy": {"name": name},
        "adapter": adapter,
        "training": {"learning_rate": 1e-3},
        "signature": {"dp": {"epsilon": 2}},
        "privacy": {"training": {"epsilon": 3}},
    } | changes


@pytest.mark.parametrize("name", strategy_names())
def test_strategies_that_noise_does_not_cover_are_refused(coordinator: Served, name: str) -> None:
    created = coordinator.admin.post("/v1/federations", json=private_plan(name))
    if name in ONLY_STEPS:
        assert created.status_code == 201, created.text
        assert created.json()["plan"]["privacy"]["training"]["steps"] == 11 * 20
        return
    assert (created.status_code, slug(created)) == (422, "validation")
    if created.json()["field"] != "adapter.kind":
        assert created.json()["field"] == "privacy.training"


def test_private_training_refuses_distillation(coordinator: Served) -> None:
    strategy = {"name": "fedmosaic", "options": {"distil": {"texts": 8}}}
    created = coordinator.admin.post("/v1/federations", json=private_plan("fedmosaic", strategy=strategy))
    assert (created.status_code, created.json()["field"]) == (422, "privacy.training")


def test_agents_without_private_training_are_refused(coordinator: Served) -> None:
    plan = private_plan("fedavg", adapter={})
    federation_id = coordinator.federation(**{key: plan[key] for key in plan if key != "name"})
    token = coordinator.enrolment_token(federation_id, "a")
    refused = coordinator.try_enrol(token, "a", capabilities=[])
    assert (refused.status_code, slug(refused)) == (426, "capability-missing")
    assert refused.json()["needed"] == CAPABILITY
    assert "privacy.training" in refused.json()["detail"]
    assert coordinator.try_enrol(token, "a", capabilities=[CAPABILITY]).status_code == 201


def test_claims_of_private_training_state_their_limits() -> None:
    claims = federation_claims(open_plan(FederationPlan.model_validate(private_plan("fedavg"))))
    (sketches,) = [claim for claim in claims if claim.startswith("Sketches: record-level (2, 1e-05)")]
    assert "the adapters, with which the coordinator is trusted" not in sketches
    (updates,) = [claim for claim in claims if claim.startswith("Updates: record-level (3, 1e-05)")]
    assert "the presence of any one training example of a silo" in updates
    assert "updates and sketches together: (5, 2e-05)" in updates
    assert "not covered: the scores, which are of held-out examples" in updates
    assert "the coordinator cannot verify it" in updates
    without = federation_claims(open_plan(federation_plan()))
    assert not any("Updates: record-level" in claim for claim in without)


def test_claim_of_batched_gradients_states_its_assumption() -> None:
    def updates(**training: str) -> str:
        plan = private_plan("fedavg", privacy={"training": {"epsilon": 3, **training}})
        claims = federation_claims(open_plan(FederationPlan.model_validate(plan)))
        (claim,) = [claim for claim in claims if claim.startswith("Updates: record-level")]
        return claim

    assert "assumed" not in updates()
    assert updates(gradients="exact") == updates()
    assert "assumed (privacy.training.gradients batched): on a silo's machine" in updates(gradients="batched")


def test_sums_of_private_updates_claim_their_noise() -> None:
    plan = private_plan("fedavg", signature={}, rounds={"min_clients": 5})
    plan["privacy"] = plan["privacy"] | {"secure_sum": {}}
    claims = " ".join(federation_claims(open_plan(FederationPlan.model_validate(plan))))
    assert "Updates: record-level (3, 1e-05)" in claims
    assert "Sums have no noise" not in claims
    assert "together" not in claims.partition("Updates: record-level")[2].partition("not covered")[0]


def test_private_updates_must_report_training_epsilon(coordinator: Served) -> None:
    plan = private_plan("fedavg", adapter=PLAN["adapter"], rounds={"total": 1, "min_clients": 2})
    plan["signature"] = {"dim": 4, "dp": {"epsilon": 2}}
    federation_id = coordinator.federation(**{key: plan[key] for key in plan if key != "name"})
    silos = [coordinator.enrol(federation_id, name, capabilities=[CAPABILITY]) for name in ("a", "b")]
    coordinator.start_federation(federation_id)
    base = join(silos[0], 1)
    refused = put(silos[0], 1, update_body(silos[0], 1, base, values(1.0)))
    assert (refused.status_code, refused.json()["field"]) == (422, "training_epsilon")
    assert "install an agent that trains with differential privacy" in refused.json()["detail"]
    body = update_body(silos[0], 1, base, values(1.0), training_epsilon=1.25)
    assert put(silos[0], 1, body).status_code == 201
    join(silos[1], 1)
    shown = {client["name"]: client for client in show(coordinator, federation_id, 1)["clients"]}
    assert [shown[name]["training_epsilon"] for name in ("a", "b")] == [1.25, None]
