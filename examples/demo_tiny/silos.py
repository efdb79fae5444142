"""Who takes part in the demo, and what a silo's engineer would have written down for each."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from client_agent.simulation.coordinator_process import TESSERA, quiet_environment

EXAMPLES = Path(__file__).resolve().parent.parent
MODELS = {"S": EXAMPLES / "models" / "tiny-s", "L": EXAMPLES / "models" / "tiny-l"}
PIVOT = MODELS["S"]


class DemoFailed(Exception):
    """Something did not work; the message says where to look."""


@dataclass(frozen=True, slots=True)
class SiloSetup:
    """One silo: its name, which base model it runs, which task its examples are of."""

    name: str
    architecture: str
    task: str
    late: bool = False


SILOS = (
    SiloSetup("aster", "S", "cipher"),
    SiloSetup("birch", "S", "cipher"),
    SiloSetup("cedar", "L", "cipher"),
    SiloSetup("delta", "L", "cipher"),
    SiloSetup("elder", "S", "label"),
    SiloSetup("fjord", "S", "label"),
    SiloSetup("grove", "L", "cipher", late=True),
)
FOUNDERS = tuple(silo for silo in SILOS if not silo.late)
LATECOMER = next(silo for silo in SILOS if silo.late)


def write_config(silo: SiloSetup, data: Path, folder: Path, url: str) -> Path:
    """Write a silo's TOML file into its folder and give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "silo.toml"
    file.write_text(
        f'url = "{url}"\n'
        f'folder = "state"\n'
        f'model = "{MODELS[silo.architecture]}"\n'
        f'pivot_model = "{PIVOT}"\n'
        f'train = "{data / silo.name / "train.jsonl"}"\n'
        f'test = "{data / silo.name / "test.jsonl"}"\n'
        f'metrics = ["exact_match"]\n'
        f"validation_share = 0.0\n"  # all twelve examples train; the rate is the plan's
        f"threads = 1\n"
    )
    return file


def start_agent(arguments: list[str], folder: Path, token: str | None = None) -> subprocess.Popen[bytes]:
    """Start `tessera agent ...`; what it says goes to agent.log in the folder, what it prints is a pipe."""
    environment = quiet_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    if token is not None:
        environment["TESSERA_AGENT_TOKEN"] = token
    with (folder / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [*TESSERA, "agent", *arguments], stdout=subprocess.PIPE, stderr=log, env=environment
        )
