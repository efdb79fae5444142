"""Agents as processes against a served coordinator: a whole federation, and killed agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_agent.model.loading import base_model_slug
from tests.acceptance.scenarios.forwarder import forwarding
from tests.scene.agent_processes import EXAMPLES, MODELS, prepare_agent
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

Serve = Callable[..., Served]


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "strategy": {"name": "fedmosaic"},
        "rounds": {"total": 3, "min_clients": 2, "collect_seconds": 300},
        "training": {"steps": 20, "max_length": 64, "learning_rate": 0.01},
        "signature": {"probe_examples": 12},
    } | changes


def test_two_architectures_complete_an_aligned_federation(
    database_url: str, serve: Serve, tmp_path: Path
) -> None:
    served = serve(database_url, tick_seconds=0.05, retry_seconds=0.2)
    alignment = {"pivot": base_model_slug(str(MODELS["S"])), "anchors": 256}
    federation_id = served.federation(**plan(alignment=alignment, rounds={"total": 2, "min_clients": 3}))
    anchors = json.loads((EXAMPLES / "anchors.json").read_bytes())
    assert served.admin.put(f"/v1/federations/{federation_id}/anchors", json=anchors).is_success
    served.start_federation(federation_id)
    agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name), model=model)
        for name, model in (("aster", "S"), ("birch", "S"), ("cedar", "L"))
    ]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.wait()
    rounds = served.rounds(federation_id)
    assert [r["state"] for r in rounds] == ["published", "published"]
    for view in rounds:
        assert view["counts"] == {"joined": 3, "arrived": 3, "late": 0, "dropped": 0, "rejected": 0}
        assert all(c["scores"]["trained"]["loss"]["count"] == 128 for c in view["clients"])
        assert view["bytes"]["up"] > 0
        assert view["bytes"]["down"] > 0
    first, last = (view["clients"][0]["scores"] for view in (rounds[0], rounds[-1]))
    assert last["trained"]["loss"]["value"] < first["served"]["loss"]["value"]
    relevance = served.admin.get(f"/v1/federations/{federation_id}/rounds/2/relevance").json()
    assert all(sum(row) == pytest.approx(1) for row in relevance["relevance"])
    packs = served.admin.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    assert len(packs) == 2
    assert len({pack["alignment_set"] for pack in packs}) == 1
    for agent in agents:
        assert next((agent.folder / "state").glob("*/final_weights.safetensors")).stat().st_size > 1000


def test_a_killed_agents_update_counts_once_per_round(
    database_url: str, serve: Serve, tmp_path: Path, rows: Callable[[str, str], list[tuple[Any, ...]]]
) -> None:
    served = serve(database_url, tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(**plan(training={"steps": 60, "max_length": 64, "learning_rate": 0.01}))
    served.start_federation(federation_id)
    with forwarding(served.url) as forwarder:
        steady = prepare_agent(tmp_path, "aster", served.url, served.enrolment_token(federation_id, "aster"))
        victim = prepare_agent(
            tmp_path, "birch", forwarder.url, served.enrolment_token(federation_id, "birch")
        )
        steady.start()
        victim.start()

        wait_until(lambda: victim.file(1, "weights.safetensors"), event="the first round's training")
        assert victim.file(1, "trained.safetensors") is None, "too late to be killed while training"
        victim.kill()
        victim.start()

        forwarder.swallow = lambda method, path: method == "PUT" and path.endswith("/rounds/2/update")
        assert forwarder.swallowed.wait(timeout=180), victim.log
        pushed = victim.file(2, "update.body")
        assert pushed is not None
        assert victim.file(2, "receipt.json") is None, "killed too late: the receipt is there"
        body = pushed.read_bytes()
        victim.kill()
        forwarder.swallow = lambda method, path: False
        victim.start()
        wait_until(lambda: victim.file(2, "receipt.json"), event="the receipt of the repeated push")
        assert pushed.read_bytes() == body, "a retry must send the same bytes"
        steady.wait()
        victim.wait()
    rounds = served.rounds(federation_id)
    assert [(r["round"], r["state"]) for r in rounds] == [(n, "published") for n in (1, 2, 3)]
    assert all(c["state"] == "arrived" and c["scores"] for r in rounds for c in r["clients"])
    counted = rows(database_url, "SELECT round_number, client_id FROM updates")
    assert len(counted) == len(set(counted)) == 6


def test_a_stopped_agent_resumes_after_a_restart(database_url: str, serve: Serve, tmp_path: Path) -> None:
    served = serve(database_url, tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(
        **plan(rounds={"total": 1, "min_clients": 1}, training={"steps": 400, "learning_rate": 0.01})
    )
    served.start_federation(federation_id)
    agent = prepare_agent(tmp_path, "aster", served.url, served.enrolment_token(federation_id, "aster"))
    agent.start()
    wait_until(lambda: agent.file(1, "weights.safetensors"), event="the round's training")
    assert agent.process is not None
    agent.process.terminate()
    assert agent.process.wait(timeout=20) == 0
    assert "start the same command again to resume" in agent.log
    agent.start()
    agent.wait()
    assert served.rounds(federation_id)[0]["state"] == "published"


def test_a_revoked_agent_stops_with_key_revoked(database_url: str, serve: Serve, tmp_path: Path) -> None:
    served = serve(database_url, tick_seconds=0.05, retry_seconds=0.2)
    federation_id = served.federation(**plan())
    agent = prepare_agent(tmp_path, "aster", served.url, served.enrolment_token(federation_id, "aster"))
    agent.start()

    def clients() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = served.admin.get(f"/v1/federations/{federation_id}/clients").json()[
            "items"
        ]
        return items

    wait_until(clients, event="enrolment")
    assert (
        served.admin.delete(
            f"/v1/federations/{federation_id}/clients/{clients()[0]['client_id']}"
        ).status_code
        == 204
    )
    assert agent.process is not None
    assert agent.process.wait(timeout=60) == 1
    assert "key-revoked" in agent.log
