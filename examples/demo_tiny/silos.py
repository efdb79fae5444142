"""The silos of the demo and their configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent
MODELS = {"S": EXAMPLES / "models" / "tiny-s", "L": EXAMPLES / "models" / "tiny-l"}
PIVOT = MODELS["S"]


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
    """Write a silo's TOML file into its folder, and return its path."""
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
