"""The command `tessera agent alignment-test`, in a federation and without one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.model.loading import base_model_slug
from tests.scene.agent_processes import EXAMPLES, MODELS, prepare_agent, tessera
from tests.scene.coordinator import ADMIN_TOKEN, Served

PIVOT, LARGE = (base_model_slug(str(MODELS[name])) for name in "SL")
ANCHORS = EXAMPLES / "anchors.json"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_enrolled_silos_verdict_is_stored(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(f"sqlite:///{tmp_path / 'tessera.db'}", retry_seconds=0.2)
    federation_id = served.federation(
        strategy={"name": "fedmosaic"},
        training={"max_length": 64},
        alignment={"pivot": PIVOT, "anchors": 256},
    )
    served.admin.put(f"/v1/federations/{federation_id}/anchors", json=json.loads(ANCHORS.read_bytes()))
    served.start_federation(federation_id)
    token = served.enrolment_token(federation_id, "cedar")
    agent = prepare_agent(tmp_path, "cedar", served.url, token, model="L")
    config = ("--config", str(agent.folder / "silo.toml"))
    assert tessera("agent", "enrol", *config, "--name", "cedar", "--token", token).returncode == 0
    by_operator = ("--url", served.url, "--token", ADMIN_TOKEN)
    created = tessera("agent", "make-pivot-pack", federation_id, str(MODELS["S"]), *by_operator)
    assert created.returncode == 0, created.stderr
    done = tessera("agent", "alignment-test", *config, "--json")
    tested = json.loads(done.stdout)
    assert done.returncode == (0 if tested["verdict"] == "passed" else 1), done.stderr
    packs = {
        p["base_model"]: p
        for p in served.admin.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
    }
    stored = packs[LARGE]["acceptance"]
    assert packs[LARGE]["digest"] == tested["pack"]
    assert packs[PIVOT]["acceptance"] is None
    assert stored["directions"] == tested["directions"]
    assert (stored["verdict"], stored["steps"], stored["seed"]) == (tested["verdict"], 50, 0)
    assert stored["learning_rate"] == 0.3 * 0.01
    assert len(stored["directions"][0]["endings"]["right"]["loss"]) >= 5
    (client,) = served.admin.get(f"/v1/federations/{federation_id}/clients").json()["items"]
    assert stored["tested_by"] == client["client_id"]
    assert [d["source"] for d in tested["directions"]] == [PIVOT, LARGE]


def offline(tmp_path: Path, model: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    agent = prepare_agent(tmp_path, "cedar", "http://127.0.0.1:1", "", model=model)
    plan = tmp_path / "plan.json"
    alignment = {"pivot": PIVOT, "anchors": 64}
    plan.write_text(json.dumps({"name": "x", "strategy": {"name": "fedmosaic"}, "alignment": alignment}))
    return tessera(
        "agent",
        "alignment-test",
        "--config",
        str(agent.folder / "silo.toml"),
        "--plan",
        str(plan),
        *arguments,
    )


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    done = offline(tmp_path, "L", "--anchors", str(ANCHORS), "--store")
    assert done.returncode == 1
    assert "--store needs a coordinator" in done.stderr


def test_a_plan_without_anchors_is_refused(tmp_path: Path) -> None:
    done = offline(tmp_path, "L")
    assert done.returncode == 1
    assert "needs both --plan and --anchors" in done.stderr


@pytest.mark.long
def test_the_pivots_own_pack_is_not_tested(tmp_path: Path) -> None:
    done = offline(tmp_path, "S", "--anchors", str(ANCHORS))
    assert done.returncode == 1
    assert "is the pivot" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_file_without_anchors_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"anchors": [{"id": "a"}]}')
    done = offline(tmp_path, "L", "--anchors", str(tmp_path / "none.json"))
    assert done.returncode == 1
    assert "is not a file of anchor texts (anchors.0.prompt" in done.stderr.replace("\n", " ")
