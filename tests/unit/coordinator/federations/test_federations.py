from __future__ import annotations

import pytest

from tests.scene.coordinator import Served, slug


def test_plans_are_stored_with_their_defaults(coordinator: Served) -> None:
    body = {"name": "clinics", "strategy": {"name": "fedmosaic"}}
    created = coordinator.admin.post("/v1/federations", json=body)
    assert created.status_code == 201
    federation = created.json()
    assert federation["state"] == "open"
    assert federation["round"] is None
    assert federation["clients"] == {"enrolled": 0, "revoked": 0}
    plan = federation["plan"]
    assert plan["adapter"]["kind"] == "pq"
    assert plan["adapter"]["rank"] == 32
    assert plan["adapter"]["roles"] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert plan["rounds"]["quorum"] == plan["rounds"]["min_clients"] == 2
    assert plan["training"]["steps"] == 20
    assert plan["limits"]["max_update_bytes"] == 64 * 2**20
    assert plan["strategy"]["options"]["temperature"] == 0.1
    assert plan["strategy"]["options"]["mix"] == "replace"
    assert coordinator.admin.get(f"/v1/federations/{federation['id']}").json() == federation


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"name": "x", "strategy": {"name": "no_such"}}, "strategy.name"),
        ({"name": "x", "strategy": {"name": "os.path"}}, "strategy.name"),
        (
            {"name": "x", "strategy": {"name": "fedmosaic", "options": {"temperature": "hot"}}},
            "strategy.options.temperature",
        ),
        (
            {"name": "x", "strategy": {"name": "fedmosaic", "options": {"no_such": 1}}},
            "strategy.options.no_such",
        ),
        ({"strategy": {"name": "fedavg"}}, "name"),
        ({"name": "x", "strategy": {"name": "fedavg"}, "rounds": {"total": 0}}, "rounds.total"),
        ({"name": "x", "strategy": {"name": "fedavg"}, "rounds": {"quorum": 9}}, "rounds.quorum"),
        ({"name": "x", "strategy": {"name": "fedavg"}, "adapter": {"rank": 1024}}, "adapter"),
        (
            {"name": "x", "strategy": {"name": "fedavg"}, "signature": {"kind": "representation"}},
            "signature.kind",
        ),
        ({"name": "x", "strategy": {"name": "fedavg"}, "misspelt": 1}, "misspelt"),
        (
            {"name": "x", "strategy": {"name": "fedavg"}, "adapter": {"kind": "lora", "private_rank": 1}},
            "adapter.private_rank",
        ),
        (
            {
                "name": "x",
                "strategy": {"name": "fedavg"},
                "adapter": {"kind": "lora", "same_architecture_rank": 1},
            },
            "adapter.same_architecture_rank",
        ),
        (
            {
                "name": "x",
                "strategy": {"name": "fedmosaic", "options": {"mix": "gate"}},
                "adapter": {"same_architecture_rank": 1},
            },
            "adapter.same_architecture_rank",
        ),
        (
            {
                "name": "x",
                "strategy": {"name": "fedmosaic", "options": {"mix": "gate"}},
                "adapter": {"kind": "lora"},
            },
            "adapter.kind",
        ),
        ({"name": "x", "strategy": {"name": "ffa_lora"}}, "adapter.kind"),
        ([], ""),
    ],
)
def test_an_invalid_plan_is_refused_with_its_field(coordinator: Served, plan: object, field: str) -> None:
    refused = coordinator.admin.post("/v1/federations", json=plan)
    assert refused.status_code == 422
    assert slug(refused) == "validation"
    assert refused.json()["field"] == field


def test_refusals_do_not_repeat_the_request(coordinator: Served) -> None:
    secret = "do-not-repeat-me"
    plan = {"name": {"x": secret}, "strategy": {"name": secret, "options": {secret + "!": secret}}}
    refused = coordinator.admin.post("/v1/federations", json=plan)
    assert refused.status_code == 422
    assert secret not in refused.text


@pytest.mark.slow
def test_pages_list_all_federations_once(coordinator: Served) -> None:
    created = {coordinator.federation() for _ in range(5)}
    listed_ids: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": "2"} | ({"after": cursor} if cursor else {})
        page = coordinator.admin.get("/v1/federations", params=query).json()
        assert len(page["items"]) <= 2
        listed_ids += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(listed_ids) == len(set(listed_ids))
    assert created <= set(listed_ids)
    assert listed_ids == sorted(listed_ids)


@pytest.mark.parametrize("path", ["fed_none", "a%00b", "..", "%F0%9F%98%80", "x" * 300])
def test_an_unknown_federation_is_not_found(coordinator: Served, path: str) -> None:
    missing = coordinator.admin.get(f"/v1/federations/{path}/clients")
    assert missing.status_code == 404
    assert slug(missing) == "not-found"
