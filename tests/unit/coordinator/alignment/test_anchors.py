"""Anchors over HTTP: who stores them, until when, and the number that a start needs."""

from __future__ import annotations

import pytest

from schemas.messages.training import ANCHOR_PULL
from schemas.wire.digests import digest_of
from tests.scene.alignment import ANCHORS, PIVOT, aligned, put_pack, refusal
from tests.scene.coordinator import Served


def test_operators_store_anchors_before_the_start(coordinator: Served) -> None:
    federation_id = aligned(coordinator, has_anchors=False)
    path = f"/v1/federations/{federation_id}/anchors"
    silo = coordinator.enrol(federation_id, "a")
    assert refusal(silo.http.get(path)) == (404, "not-found")
    assert refusal(silo.http.put(path, json=ANCHORS)) == (403, "forbidden")
    operator = coordinator.person("operator")
    stored = operator.put(path, json=ANCHORS)
    assert (stored.status_code, stored.json()["count"]) == (201, 3)
    assert operator.put(path, json=ANCHORS).status_code == 200
    fewer = {"anchors": ANCHORS["anchors"][:2]}
    assert operator.put(path, json=fewer).status_code == 201
    assert operator.put(path, json=ANCHORS).status_code == 201
    response = silo.http.get(path)
    assert response.json() == ANCHORS
    assert digest_of(response.content) == stored.json()["digest"]
    coordinator.start_federation(federation_id)
    assert refusal(operator.put(path, json=fewer)) == (409, "federation-state")
    assert operator.put(path, json=ANCHORS).status_code == 200


@pytest.mark.parametrize("stored", [0, 2])
def test_a_start_needs_the_planned_number_of_anchors(coordinator: Served, stored: int) -> None:
    federation_id = aligned(coordinator, has_anchors=False)
    if stored:
        too_few = {"anchors": ANCHORS["anchors"][:stored]}
        coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=too_few)
    answer = coordinator.admin.post(f"/v1/federations/{federation_id}/start")
    assert refusal(answer) == (409, "anchors-missing")
    assert (answer.json()["needed"], answer.json()["stored"]) == (3, stored)
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "open"
    coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS)
    coordinator.start_federation(federation_id)


def test_a_pull_to_the_base_model_needs_texts(coordinator: Served) -> None:
    federation_id = coordinator.federation(training={"anchor_pull": 0.1})
    path = f"/v1/federations/{federation_id}"
    answer = coordinator.admin.post(f"{path}/start")
    assert refusal(answer) == (409, "anchors-missing")
    assert (answer.json()["needed"], answer.json()["stored"]) == (1, 0)
    assert coordinator.admin.put(f"{path}/anchors", json=ANCHORS).status_code == 201
    coordinator.start_federation(federation_id)
    without_use = coordinator.federation(training={"anchor_pull": 0})
    answer = coordinator.admin.put(f"/v1/federations/{without_use}/anchors", json=ANCHORS)
    assert refusal(answer) == (409, "federation-state")
    assert "training.anchor_pull" in answer.json()["detail"]


def test_agents_without_the_pull_are_refused(coordinator: Served) -> None:
    token = coordinator.enrolment_token(coordinator.federation(training={"anchor_pull": 0.1}), "a")
    refused = coordinator.try_enrol(token, "a", capabilities=[])
    assert refusal(refused) == (426, "capability-missing")
    assert refused.json()["needed"] == ANCHOR_PULL
    assert "training.anchor_pull" in refused.json()["detail"]
    assert coordinator.try_enrol(token, "a", capabilities=[ANCHOR_PULL]).status_code == 201


def test_bank_refuses_a_pull_to_the_base_model(coordinator: Served) -> None:
    plan = {
        "name": "bank",
        "strategy": {"name": "fed_vemoe"},
        "privacy": {"secure_sum": {}},
        "adapter": {"kind": "lora"},
        "training": {"anchor_pull": 1},
    }
    answer = coordinator.admin.post("/v1/federations", json=plan)
    assert refusal(answer) == (422, "validation")
    assert "training.anchor_pull" in answer.text


def test_random_frames_start_without_anchors(coordinator: Served) -> None:
    federation_id = aligned(coordinator, frames="random", has_anchors=False)
    started = coordinator.admin.post(f"/v1/federations/{federation_id}/start")
    assert (started.status_code, started.json()["state"]) == (200, "running")


def test_anchors_with_duplicate_ids_are_refused(coordinator: Served) -> None:
    federation_id = aligned(coordinator)
    twice = {"anchors": ANCHORS["anchors"][:1] * 2}
    assert refusal(coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=twice)) == (
        422,
        "validation",
    )


def test_federations_without_alignment_refuse_anchors_and_packs(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    answer = coordinator.admin.put(f"/v1/federations/{federation_id}/anchors", json=ANCHORS)
    assert refusal(answer) == (409, "federation-state")
    assert refusal(put_pack(coordinator.admin, federation_id, PIVOT)) == (409, "federation-state")
