"""Plans whose updates cannot be summed are refused; the answer names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.messages.federations import FederationPlan
from tests.scene.coordinator import Served, slug

ROUNDS = {"min_clients": 5, "total": 3}
LORA = {"kind": "lora", "rank": 2, "roles": ["q"]}


def create_federation(served: Served, summed: dict[str, Any] | None = None, **plan: Any) -> Any:
    privacy = {"secure_sum": summed or {}} | plan.pop("privacy", {})
    body = {"name": "a", "strategy": {"name": "fedavg"}, "rounds": ROUNDS, "privacy": privacy} | plan
    return served.admin.post("/v1/federations", json=body)


@pytest.mark.parametrize(
    ("strategy", "adapter"),
    [("fedavg", {}), ("fedavg", LORA), ("ffa_lora", LORA), ("fedsa_lora", LORA)],
)
def test_summable_plans_are_stored_with_dense_updates(
    coordinator: Served, strategy: str, adapter: dict[str, Any]
) -> None:
    created = create_federation(coordinator, strategy={"name": strategy}, adapter=adapter)
    assert created.status_code == 201, created.text
    stored = created.json()["plan"]
    assert stored["privacy"]["secure_sum"]["minimum"] == 5
    assert FederationPlan.model_validate(stored).wire.recipe.is_dense
    plain = coordinator.admin.post("/v1/federations", json={"name": "b", "strategy": {"name": "fedavg"}})
    assert plain.json()["plan"]["privacy"]["secure_sum"] is None


def test_the_audit_log_describes_a_secure_sum(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"))
    assert create_federation(served).status_code == 201
    entries = served.admin.get("/v1/audit").json()["items"]
    (created,) = [entry for entry in entries if entry["event"] == "federation-created"]
    assert created["reason"] == "updates are summed: masking pairwise, at least 5 members"


@pytest.mark.parametrize("strategy", ["het_lora", "lora_fair", "fedex_lora", "flora", "ca_pfl", "fedmosaic"])
def test_unsummable_strategies_are_refused_with_alternatives(coordinator: Served, strategy: str) -> None:
    adapter = {} if strategy == "fedmosaic" else LORA
    _assert_refused(
        create_federation(coordinator, strategy={"name": strategy}, adapter=adapter),
        "strategy.name",
        "with privacy.secure_sum choose ditto, fed_vemoe, fedavg, fedprox, fedsa_lora, ffa_lora",
    )


@pytest.mark.parametrize(
    ("plan", "field", "detail"),
    [
        ({"privacy": {"allow_bearer_clients": True}}, "privacy.allow_bearer_clients", "sign with keys"),
        ({"rounds": {"min_clients": 4}}, "rounds.min_clients", "use 5 or more"),
        ({"rounds": {"min_clients": 6, "quorum": 4}}, "rounds.quorum", "use 5 or more"),
        ({"rounds": {"min_clients": 129}}, "rounds.min_clients", "at most 128"),
        ({"wire": {"recipe": "int8"}}, "wire.recipe", "dense"),
        (
            {"wire": {"recipe": "dense", "weights_recipe": "int8_own_last"}},
            "wire.weights_recipe",
            "int8, int4 or dense",
        ),
        ({"wire": {"max_bytes": 10**6}}, "wire.max_bytes", "fixed size"),
        ({"alignment": {"pivot": "tiny-s-3f0c9a1b2c3d"}}, "adapter.target_modules", "all base models share"),
        ({"signature": {"dp": {"epsilon": 4}}}, "signature.dp", "no signatures are sent"),
        ({"privacy": {"min_voices": 5}}, "privacy.min_voices", "has 4 others"),
        ({"summed": {"minimum": 2}}, "privacy.secure_sum.minimum", "at least 3 with pairwise masking"),
        ({"summed": {"minimum": 129}}, "privacy.secure_sum.minimum", "128"),
    ],
)
def test_fields_incompatible_with_a_sum_are_refused(
    coordinator: Served, plan: dict[str, Any], field: str, detail: str
) -> None:
    _assert_refused(create_federation(coordinator, **plan), field, detail)


@pytest.mark.parametrize("recipe", ["int8", "int4"])
def test_a_sum_may_be_published_as_a_difference(coordinator: Served, recipe: str) -> None:
    created = create_federation(coordinator, wire={"recipe": "dense", "weights_recipe": recipe})
    assert created.status_code == 201, created.text
    assert created.json()["plan"]["wire"]["weights_recipe"] == recipe


def test_a_small_sum_in_clear_is_allowed(coordinator: Served) -> None:
    created = create_federation(coordinator, {"masking": "none", "minimum": 2}, rounds={"min_clients": 2})
    assert created.status_code == 201, created.text


def _assert_refused(answer: Any, field: str, detail: str) -> None:
    assert (answer.status_code, slug(answer)) == (422, "validation"), answer.text
    problem = answer.json()
    assert problem["field"] == field, problem
    assert detail in problem["detail"]
