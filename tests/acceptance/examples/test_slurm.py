"""The scripts of examples/slurm: with stand-ins for Slurm's commands, and with Slurm."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.deployment.composition import ROOT
from tests.acceptance.docs.command_line import mistakes
from tests.acceptance.examples.slurm_node import is_possible, slurm_node
from tests.scene.waiting import wait_until

SCRIPTS = ROOT / "examples" / "slurm"
CYCLE, ROUND, ARRAY = (SCRIPTS / name for name in ("cycle.sh", "round.sbatch", "array_of_silos.sbatch"))
STAND_IN = """\
#!/bin/bash
echo "$(basename "$0") $*" >> "{folder}/calls"
{body}
"""
UNTIL_TERM = """\
trap 'echo stopped >> "{folder}/calls"; exit 75' TERM
echo ready >> "{folder}/calls"
while true; do read -r -t 0.05 <> <(:) || true; done
"""


@dataclass
class Login:
    """A login node whose commands are stand-ins that note how they were called."""

    folder: Path

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}:/usr/bin:/bin"

    @property
    def config(self) -> Path:
        return self.folder / "silos" / "aster" / "silo.toml"

    def command(self, name: str, body: str = "") -> None:
        file = self.folder / "bin" / name
        file.write_text(STAND_IN.format(folder=self.folder, body=body.format(folder=self.folder)))
        file.chmod(0o755)

    def calls(self) -> list[str]:
        notes = self.folder / "calls"
        return notes.read_text().splitlines() if notes.exists() else []

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            env={"PATH": self.path} | variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def login(tmp_path: Path) -> Login:
    node = Login(tmp_path)
    (tmp_path / "bin").mkdir()
    node.config.parent.mkdir(parents=True)
    node.config.touch()
    for name in ("squeue", "sbatch", "scontrol", "tessera"):
        node.command(name)
    return node


def test_a_turn_syncs_and_submits_a_named_job(login: Login) -> None:
    done = login.run(CYCLE, login.config, "--partition=gpu", "--gres=gpu:2")
    assert done.returncode == 0, done.stderr
    assert login.calls() == [
        "squeue --me --noheader --name=tessera-aster",
        f"tessera agent sync --config {login.config} --wait 60",
        f"sbatch --job-name=tessera-aster --partition=gpu --gres=gpu:2 {ROUND} {login.config}",
    ]


def test_a_turn_skips_a_silo_with_a_job(login: Login) -> None:
    login.command("squeue", "echo '17 gpu tessera-aster PD'")
    assert login.run(CYCLE, login.config).returncode == 0
    assert [call.split()[0] for call in login.calls()] == ["squeue"]


@pytest.mark.parametrize(("sync", "turn"), [(75, 0), (1, 1)])
def test_a_turn_without_work_submits_no_job(login: Login, sync: int, turn: int) -> None:
    login.command("tessera", f"exit {sync}")
    assert login.run(CYCLE, login.config).returncode == turn
    assert [call.split()[0] for call in login.calls()] == ["squeue", "tessera"]


def test_a_turn_fails_without_an_answering_controller(login: Login) -> None:
    login.command("squeue", "echo 'slurm_load_jobs error' >&2; exit 1")
    assert login.run(CYCLE, login.config).returncode == 1
    assert [call.split()[0] for call in login.calls()] == ["squeue"]


@pytest.mark.parametrize("name", ["squeue", "sbatch", "tessera"])
def test_a_command_missing_on_path_is_named(login: Login, name: str) -> None:
    (login.folder / "bin" / name).unlink()
    for tool in ("basename", "dirname", "realpath"):
        (login.folder / "bin" / tool).symlink_to(str(shutil.which(tool)))
    done = login.run("/bin/bash", CYCLE, login.config, PATH=str(login.folder / "bin"))
    assert done.returncode == 1
    assert f"{name} is not on PATH" in done.stderr
    assert login.calls() == []


@pytest.mark.parametrize("work", [0, 1, 75])
def test_a_job_at_its_time_limit_is_requeued(login: Login, work: int) -> None:
    login.command("tessera", f'echo "threads $OMP_NUM_THREADS offline $HF_HUB_OFFLINE"; exit {work}')
    done = login.run("bash", ROUND, login.config, SLURM_JOB_ID="17", SLURM_CPUS_PER_TASK="8")
    assert done.returncode == work
    assert done.stdout == "threads 8 offline 1\n"
    requeued = ["scontrol requeue 17"] if work == 75 else []
    assert login.calls() == [f"tessera agent work --config {login.config}", *requeued]


def test_the_signal_before_the_end_reaches_the_agent(login: Login) -> None:
    login.command("tessera", UNTIL_TERM)
    variables = {"PATH": login.path, "SLURM_JOB_ID": "17"}
    with subprocess.Popen(["bash", ROUND, login.config], env=variables, cwd=login.folder) as job:
        wait_until(lambda: "ready" in login.calls())
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=60) == 75
    assert login.calls()[-2:] == ["stopped", "scontrol requeue 17"]


def test_array_tasks_have_one_silo_each(login: Login) -> None:
    silos = login.folder / "silos.txt"
    silos.write_text("/silos/aster/silo.toml\n/silos/birch/silo.toml\n")
    done = login.run("bash", ARRAY, silos, SLURM_ARRAY_TASK_ID="2")
    assert done.returncode == 0
    assert login.calls() == ["tessera agent work --config /silos/birch/silo.toml --time 3480"]


@pytest.mark.parametrize("script", [CYCLE, ROUND, ARRAY], ids=lambda script: script.name)
def test_commands_of_the_agent_exist(script: Path) -> None:
    lines = [line.removeprefix("exec ").split("||")[0] for line in script.read_text().splitlines()]
    commands = [line for line in lines if line.startswith("tessera ")]
    assert commands
    for line in commands:
        assert not list(mistakes(line.rstrip(" &").replace('"$config"', "silo.toml")))


def test_the_scrontab_line_runs_a_turn(login: Login) -> None:
    *options, line = (SCRIPTS / "scrontab").read_text().splitlines()
    assert [option.split("=")[0] for option in options if option.startswith("#SCRON")] == [
        "#SCRON --job-name",
        "#SCRON --partition",
        "#SCRON --time",
    ]
    when, command = re.fullmatch(r"((?:\S+ ){5})(.*)", line).groups()  # type: ignore[union-attr]
    assert when == "*/15 * * * * "
    path, rest_of_line = command.split(" ", 1)
    assert path.startswith("PATH=/opt/tessera/.venv/bin:")
    local_command = rest_of_line.replace("/opt/tessera/examples/slurm", str(SCRIPTS))
    local_command = local_command.replace("/silos", f"{login.folder}/silos")
    done = login.run("/bin/sh", "-c", f"PATH={login.path} {local_command}")
    assert done.returncode == 0, done.stderr
    assert login.calls()[-1].startswith("sbatch --job-name=tessera-aster --partition=gpu ")


@pytest.mark.slow
@pytest.mark.skipif(not is_possible(), reason="Debian: `apt-get install slurm-wlm`, and root")
def test_slurm_runs_and_requeues_a_round(login: Login, tmp_path: Path) -> None:
    for name in ("squeue", "sbatch", "scontrol"):
        (login.folder / "bin" / name).unlink()
    (tmp_path / "slurm").mkdir()
    with slurm_node(tmp_path / "slurm") as environment:
        environment |= {"PATH": f"{login.folder / 'bin'}:{os.environ['PATH']}"}

        def run(*command: object) -> subprocess.CompletedProcess[str]:
            strings = [str(part) for part in command]
            return subprocess.run(strings, env=environment, capture_output=True, text=True, timeout=120)

        def turn(*options: str) -> int:
            small = ("--gres=none", "--cpus-per-task=1", "--mem=1", "--partition=gpu")
            return run(CYCLE, login.config, *small, f"--chdir={login.folder}", *options).returncode

        assert turn("--wait") == 0
        sync, work = (f"tessera agent {part} --config {login.config}" for part in ("sync", "work"))
        assert login.calls() == [f"{sync} --wait 60", work]
        login.command("tessera", 'test "$2" = sync || exit 3')
        assert turn("--wait") == 3  # a failed job is the failure of whoever waits for it
        login.command("tessera", 'test "$2" = sync || exit 75')
        assert turn() == 0
        wait_until(lambda: "Restarts=1" in run("scontrol", "show", "jobs").stdout, event="a job queued again")
        before = login.calls()
        assert turn() == 0
        assert login.calls() == before  # its job is queued
