"""Slurm on this machine alone: munge, controller and node, from Debian's `slurm-wlm`, for one test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.scene.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
_CONFIGURATION = """\
ClusterName=tessera
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def is_possible() -> bool:
    """Whether Slurm is installed, and may be started by this user."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in PROGRAMS)


@contextmanager
def slurm_node(folder: Path) -> Iterator[dict[str, str]]:
    """Run Slurm with one idle node for the duration of a block; yield the variables of its commands."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(host=host, folder=folder, ports=[_port(), _port()], cores=os.cpu_count())
    )
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    munge = {name: folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
    with ExitStack() as stack, (folder / "log").open("wb") as log:
        for command in (
            [
                "munged",
                "--foreground",
                "--force",
                f"--key-file={key}",
                f"--socket={munge['socket']}",
                f"--pid-file={munge['pid']}",
                f"--log-file={munge['log']}",
                f"--seed-file={munge['seed']}",
            ],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D"],
        ):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_until(munge["socket"].exists, event="munged")
        wait_until(lambda: "idle" in _query(environment, "sinfo"), event="an idle node of Slurm")
        yield environment


def _query(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


def _port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])
