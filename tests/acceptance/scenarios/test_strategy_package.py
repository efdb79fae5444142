"""A strategy from a separate package: installed by pip, named in a plan, run by agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import UnknownStrategy
from client_agent.rounds.strategy import load_strategy
from coordinator.strategies import opening
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.registry import OWN_STRATEGIES, strategy_names, strategy_packages
from tests.acceptance.scenarios.packages import install_example
from tests.scene.agent_processes import EXAMPLES, prepare_agent
from tests.scene.coordinator import Served, slug
from tests.scene.rounds import join, try_join

PLAN = {
    "strategy": {"name": "halfway", "options": {"share_of_own": 0.75}},
    "rounds": {"total": 2, "min_clients": 2, "collect_seconds": 120},
    "adapter": {"kind": "lora", "rank": 2, "roles": ["v"]},
    "training": {"steps": 2, "max_length": 64, "learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example package."""
    return install_example(tmp_path_factory.mktemp("site"), "strategy_package")


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
    for cached in (strategy_packages, strategy_names, opening.load):
        cached.cache_clear()


@pytest.mark.slow
def test_agents_run_rounds_of_an_installed_strategy(
    installed: Path, coordinator: Served, tmp_path: Path
) -> None:
    served = coordinator
    federation_id = served.federation(**PLAN)
    served.start_federation(federation_id)
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
def test_an_agent_without_the_package_names_it(
    site: Path, installed: Path, coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = coordinator
    federation_id = served.federation(**PLAN)
    served.start_federation(federation_id)
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


class RenamedOptions(StrategyOptions):
    """The options of another version of the package."""


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    forget()


def test_federations_of_an_uninstalled_strategy_are_shown(
    installed: Path, database_url: str, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(database_url, tick_seconds=0.05, retry_seconds=0.1, lease_seconds=1.0)
    pq = {"rank": 2, "blocks": 1, "roles": ["q", "v"]}
    federation_id = served.federation(**PLAN | {"adapter": pq})
    silos = [served.enrol(federation_id, name) for name in ("a", "b")]
    served.start_federation(federation_id)
    join(silos[0], 1)
    uninstall(monkeypatch)
    shown = served.admin.get(f"/v1/federations/{federation_id}")
    assert shown.status_code == 200
    (claim,) = shown.json()["claims"]
    assert "halfway is not installed" in claim
    assert served.admin.get("/v1/federations").status_code == 200
    refusal = try_join(silos[1], 1)
    assert (refusal.status_code, slug(refusal)) == (503, "unavailable")
    assert int(refusal.headers["Retry-After"]) > 0


def test_federations_with_incompatible_options_are_shown(
    installed: Path, coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation_id = coordinator.federation(**PLAN)
    monkeypatch.setattr("tessera_halfway.options.Options", RenamedOptions)
    forget()
    assert coordinator.admin.get("/v1/federations").status_code == 200
    assert "halfway" in coordinator.admin.get(f"/v1/federations/{federation_id}").json()["claims"][0]


def add_package(folder: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, package: str) -> None:
    """Install a package as its metadata alone."""
    metadata = folder / f"{package}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[tessera.strategies]\n{name} = {package}\n")
    monkeypatch.syspath_prepend(str(folder))
    forget()


def test_duplicate_strategy_names_are_refused_on_use(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_package(tmp_path, monkeypatch, name="halfway", package="another")
    assert opening.make("fedavg", {})
    assert load_strategy("fedavg")
    message = r"'halfway' is defined by .*another.*: uninstall one"
    with pytest.raises(opening.UnknownStrategy, match=message):
        opening.make("halfway", {})
    with pytest.raises(UnknownStrategy, match=message):
        load_strategy("halfway")


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_package(tmp_path, monkeypatch, name="broken", package="broken_strategy")
    with pytest.raises(opening.UnknownStrategy, match=r"broken_strategy\.coordinator cannot be imported"):
        opening.make("broken", {})
    package = tmp_path / "broken_strategy"
    package.mkdir()
    (package / "agent.py").write_text("class Options: ...\n")
    with pytest.raises(UnknownStrategy, match=r"broken_strategy\.agent does not define Strategy"):
        load_strategy("broken")
    (package / "agent.py").write_text("class Strategy: ...\n")
    (package / "options.py").write_text("class Options: ...\n")
    sys.modules.pop("broken_strategy.agent")
    with pytest.raises(UnknownStrategy, match=r"Options of broken_strategy\.options is no subclass"):
        load_strategy("broken")
    monkeypatch.undo()
    forget()


def test_a_package_cannot_replace_a_shipped_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_package(tmp_path, monkeypatch, name="fedavg", package="not_fedavg")
    assert opening.load("fedavg").strategy.__module__ == "coordinator.strategies.fedavg"
    assert opening.load("fedavg").options is OWN_STRATEGIES["fedavg"]
    monkeypatch.undo()
    forget()
