"""A strategy from a package of its own: installed by pip, planned by name, run by real agents."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.strategies import opening
from schemas.strategy_packages import AmbiguousStrategy, strategy_packages
from tests.scenarios.agents import EXAMPLES, prepare_agent
from tests.served import Served, slug

PLAN = {
    "strategy": {"name": "halfway", "options": {"share_of_own": 0.75}},
    "rounds": {"total": 2, "min_clients": 2, "collect_seconds": 120},
    "adapter": {"kind": "lora", "rank": 2, "roles": ["v"]},
    "training": {"steps": 2, "max_length": 64},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example package."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    package = str(EXAMPLES / "strategy_package")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, package], check=True)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package on the path of this process, where the coordinator runs, and of every agent."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(site))
    forget()
    yield site
    monkeypatch.undo()
    forget()


def forget() -> None:
    for cached in (strategy_packages, opening.names, opening.load):
        cached.cache_clear()


@pytest.mark.slow
def test_agents_run_rounds_of_an_installed_strategy(
    installed: Path, coordinator: Served, tmp_path: Path
) -> None:
    served = coordinator
    federation_id = served.federation(**PLAN)
    served.admin.post(f"/v1/federations/{federation_id}/start")
    agents = [
        prepare_agent(tmp_path, name, served.url, served.enrolment_token(federation_id, name))
        for name in ("aster", "birch")
    ]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.wait()
    relevance = served.admin.get(f"/v1/federations/{federation_id}/rounds/2/relevance").json()["relevance"]
    assert np.allclose(relevance, [[0.75, 0.25], [0.25, 0.75]])


@pytest.mark.slow
def test_an_agent_without_the_package_names_what_is_missing(
    site: Path, installed: Path, coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = coordinator
    federation_id = served.federation(**PLAN)
    served.admin.post(f"/v1/federations/{federation_id}/start")
    agent = prepare_agent(tmp_path, "aster", served.url, served.enrolment_token(federation_id, "aster"))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    agent.start()
    assert agent.process is not None
    assert agent.process.wait(timeout=120) != 0
    assert "no strategy 'halfway'" in agent.log
    assert "install the package of the strategy" in " ".join(agent.log.split())


def test_options_of_an_installed_strategy_are_validated(installed: Path, coordinator: Served) -> None:
    served = coordinator
    plan = {"name": "x", **PLAN, "strategy": {"name": "halfway", "options": {"share_of_own": 2}}}
    refusal = served.admin.post("/v1/federations", json=plan)
    assert (refusal.status_code, slug(refusal)) == (422, "validation")
    assert "share_of_own" in refusal.text


def test_a_federation_of_an_uninstalled_strategy_is_still_shown(
    installed: Path, coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation_id = coordinator.federation(**PLAN)
    monkeypatch.undo()
    forget()
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}")
    assert shown.status_code == 200
    (claim,) = shown.json()["claims"]
    assert "halfway is not installed" in claim
    assert coordinator.admin.get("/v1/federations").status_code == 200


def test_two_packages_of_one_name_are_refused(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "another-1.dist-info"
    metadata.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[tessera.strategies]\nhalfway = another\n")
    with pytest.raises(AmbiguousStrategy, match=r"'halfway' is defined by .*another.*: uninstall one"):
        strategy_packages()
