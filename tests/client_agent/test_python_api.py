"""The Python way in, as a user's script writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from client_agent import AgentSettings, open_participant, run
from client_agent.errors import NotEnrolled, StudyUnusable
from studies import Study, simulate
from tests.client_agent.conftest import config
from tests.client_agent.test_daemon import alone_plan
from tests.served import Served
from tests.studies.studies import write_study


def test_a_silo_takes_part_from_python(served: Served, tmp_path: Path) -> None:
    federation_id = served.federation(**alone_plan(rounds={"total": 1, "min_clients": 1}))
    token = served.enrolment_token(federation_id, "aster")
    served.admin.post(f"/v1/federations/{federation_id}/start")
    settings = AgentSettings.from_toml(config(tmp_path, url=served.url))
    with open_participant(settings, (token, "aster")) as participant:
        run(participant)
    assert (participant.workspace.home / "final_weights.safetensors").is_file()


def test_a_participant_needs_a_membership(tmp_path: Path) -> None:
    with pytest.raises(NotEnrolled), open_participant(AgentSettings.from_toml(str(config(tmp_path)))):
        pass


@pytest.mark.slow
def test_methods_are_compared_from_python(tmp_path: Path) -> None:
    study = Study.from_toml(write_study(tmp_path))
    report = simulate(study, methods=["local_lora", "fedavg"], seeds=[0], out=tmp_path / "out", workers=1)
    assert [method.method for method in report.methods] == ["local_lora", "fedavg"]
    assert (report.study, report.seeds, report.missing) == ("study", [0], [])
    assert (tmp_path / "out" / "report.json").is_file()


def test_an_unknown_method_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match="unknown method fedmagic"):
        simulate(Study.from_toml(write_study(tmp_path)), methods=["fedmagic"], out=tmp_path / "out")


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, client_agent, studies\n"
        "from client_agent import AgentSettings, open_participant\n"
        "from studies import Study\n"
        "assert 'run' in dir(client_agent) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
