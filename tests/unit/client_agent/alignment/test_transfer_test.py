"""Verdicts of `tessera agent alignment-test`: stored with the default settings, or on request."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from client_agent.alignment import module_selection, transfer_test
from client_agent.identity.membership import enrol
from client_agent.model.loading import base_model_slug
from client_agent.settings import read_settings
from client_agent.training.silo import open_silo
from client_agent.transport.client import CoordinatorApi
from coordinator.alignment import transfer_test as acceptance_route
from tests.scene.agent_commands import tessera
from tests.scene.agent_processes import EXAMPLES, MODELS
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.silo_config import config

EVERY_MODULE = {f"b{block}.{role}" for block in range(4) for role in ("v", "down")}
PIVOT, LARGE = (base_model_slug(str(MODELS[name])) for name in "SL")


@pytest.fixture
def silo_file(
    tmp_path: Path,
    fresh_database: Callable[[str], str],
    serve: Callable[..., Served],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, Callable[[], dict[str, Any] | None]]:
    """A silo in a federation that aligns its model, with tests of few steps, and the stored verdict."""
    for name in ("SOURCE_STEPS", "TARGET_STEPS"):
        monkeypatch.setattr(transfer_test, name, 1)
    monkeypatch.setattr(acceptance_route, "REPLACED_AFTER", timedelta(0))
    monkeypatch.setattr(module_selection, "FITTING_TASKS", 2)
    monkeypatch.setattr(module_selection, "HELD_OUT_TASKS", 1)
    served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.05)
    federation_id = served.federation(
        strategy={"name": "fedmosaic"},
        adapter={"rank": 4, "roles": ["v", "down"]},
        training={"max_length": 64},
        alignment={"pivot": PIVOT, "anchors": 64, "seed": 5, "max_error": 9.0},
    )
    content = json.loads((EXAMPLES / "anchors.json").read_bytes())
    served.admin.put(f"/v1/federations/{federation_id}/anchors", json=content)
    served.start_federation(federation_id)
    operator = ("--token", ADMIN_TOKEN, "--url", served.url)
    done = tessera("make-pivot-pack", federation_id, MODELS["S"], *operator)
    assert done.exit_code == 0, done.output
    file = config(tmp_path, url=served.url, model=str(MODELS["L"]), pivot_model=str(MODELS["S"]))
    settings = read_settings(file)
    with CoordinatorApi(served.url, key=None, deadline_seconds=20, sleep=lambda _: None) as api:
        token = served.enrolment_token(federation_id, "aster")
        enrol(api, settings.folder, token=token, name="aster", profile=open_silo(settings).profile)

    def stored() -> dict[str, Any] | None:
        packs = served.admin.get(f"/v1/federations/{federation_id}/alignments").json()["items"]
        acceptance: dict[str, Any] | None = next(p["acceptance"] for p in packs if p["base_model"] == LARGE)
        return acceptance

    return file, stored


@pytest.mark.long
def test_verdict_is_stored_for_default_settings_or_store(
    silo_file: tuple[Path, Callable[[], dict[str, Any] | None]],
) -> None:
    file, stored = silo_file
    test = ("alignment-test", "--config", file)
    for options in (("--steps", 2), ("--seed", 6)):
        done = tessera(*test, *options)
        assert done.exit_code in (0, 1), done.output
        assert "lead of" in " ".join(done.stdout.split())
        (shared,) = (line for line in done.stdout.splitlines() if line.startswith("Both packs share "))
        assert set(shared.removeprefix("Both packs share ").split(",")) == EVERY_MODULE
        assert stored() is None, options
    assert tessera(*test).exit_code in (0, 1)
    usual = stored()
    assert usual is not None
    assert (usual["steps"], usual["seed"], usual["learning_rate"]) == (1, 5, 0.003)
    tessera(*test, "--steps", 2, "--seed", 6, "--store")
    requested = stored()
    assert requested is not None
    assert (requested["steps"], requested["seed"], requested["learning_rate"]) == (2, 6, 0.003)


def test_missing_file_is_reported_before_loading_a_model(tmp_path: Path) -> None:
    silo, plan = config(tmp_path, model="./no-model-is-here"), tmp_path / "plan.json"
    alignment = {"pivot": PIVOT, "anchors": 64}
    plan.write_text(json.dumps({"name": "x", "strategy": {"name": "fedmosaic"}, "alignment": alignment}))
    test = ("alignment-test", "--config", silo, "--plan", plan, "--anchors")
    for options in (
        (EXAMPLES / "anchors.json", "--pack", tmp_path / "none"),
        (EXAMPLES / "anchors.json", "--pivot-pack", tmp_path / "none"),
        (tmp_path / "none",),
    ):
        done = tessera(*test, *options)
        assert done.exit_code == 1
        assert "none cannot be read" in done.stderr.replace("\n", " ")
