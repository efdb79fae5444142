"""The Python interface, as in a user's script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client_agent import AgentSettings, open_participant, run
from client_agent.errors import NotEnrolled, StudyUnusable
from studies import Study, simulate
from studies.quickstart.folder import QuickstartFolder
from tests.scene.agents import start_alone
from tests.scene.coordinator import Served
from tests.scene.silo_config import config
from tests.scene.studies import write_study

ROOT = Path(__file__).parents[3]


def test_silo_takes_part_from_python(served: Served, tmp_path: Path) -> None:
    _, token = start_alone(served, rounds={"total": 1, "min_clients": 1})
    settings = AgentSettings.from_toml(config(tmp_path, url=served.url))
    with open_participant(settings, (token, "aster")) as participant:
        run(participant)
    assert (participant.workspace.home / "final_weights.safetensors").is_file()


def test_participant_needs_a_membership(tmp_path: Path) -> None:
    with pytest.raises(NotEnrolled), open_participant(AgentSettings.from_toml(str(config(tmp_path)))):
        pass


@pytest.mark.slow
def test_methods_are_compared_from_python(tmp_path: Path) -> None:
    study = Study.from_toml(write_study(tmp_path))
    report = simulate(study, methods=["local_lora", "fedavg"], seeds=[0], out=tmp_path / "out", workers=1)
    assert [method.method for method in report.methods] == ["local_lora", "fedavg"]
    assert (report.study, report.seeds, report.missing) == ("study", [0], [])
    assert (tmp_path / "out" / "report.json").is_file()
    assert report.losses == {method.method: method.loss.mean.mean for method in report.methods}
    assert str(report) == report.table()
    assert "local_lora" in report.table()
    assert max(map(len, report.table(width=70).splitlines())) <= 70
    assert len(repr(report)) < 200
    assert report._repr_html_().startswith("<pre style=")
    assert "fedavg" in report._repr_html_()
    assert f"{report.losses['fedavg']:.3f}" in report._repr_html_()


@pytest.mark.slow
def test_example_at_the_top_of_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    QuickstartFolder.create(tmp_path / "tessera-quickstart")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"│ fedit +│ +1 │ +\d\.\d{3} │", done.stdout), done.stdout
    assert re.search(r"^\{'local_lora': \d\.\d+, 'fedit': \d\.\d+\}$", done.stdout, re.MULTILINE)
    assert "runs" in done.stderr
    assert "left" in done.stderr or "finished" in done.stderr
    assert (tmp_path / "runs" / "first" / "report.json").is_file()


def test_unknown_method_is_refused_before_the_study_runs(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match="unknown method fedmagic"):
        simulate(Study.from_toml(write_study(tmp_path)), methods=["fedmagic"], out=tmp_path / "out")


def test_package_import_loads_no_torch() -> None:
    code = (
        "import sys, client_agent, studies\n"
        "from client_agent import AgentSettings, open_participant\n"
        "from studies import Study\n"
        "assert 'run' in dir(client_agent) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
