"""The folder of a quickstart: model, plan, and two silos with data and silo.toml."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, Self

from schemas.messages.recommendations import Table, recommended
from schemas.user_files import FileUnusable, complaint
from studies.earlier_folder import set_aside

SILOS: Final = ("north", "harbour")
ROUNDS: Final = 3
HELD_OUT: Final = 32
_MARK: Final = ".tessera-quickstart"
_SIDES: Final = ("train", "test")
_STRATEGY: Final = "fedmosaic"


def plan() -> Table:
    """Return the plan: the strategy's recommended one, with steps and a rate for a tiny model."""
    parts = recommended(_STRATEGY, aligned=False)
    training: Table = {
        "schedule": "linear",
        "steps": 24,
        "batch_size": 8,
        "learning_rate": 0.01,
        "max_length": 64,
    }
    return {
        **parts,
        "name": "quickstart",
        "strategy": {"name": _STRATEGY},
        "rounds": {"total": ROUNDS, "min_clients": len(SILOS)},
        "training": training,
        "scores": {"examples": HELD_OUT},
    }


@dataclass(frozen=True, slots=True)
class QuickstartFolder:
    """A new folder; `earlier` is where the folder of an earlier run is now, None = there was none."""

    path: Path
    earlier: Path | None

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a folder with model, plan and data; a folder of an earlier quickstart is renamed.

        Raises:
            FileUnusable: the path is another's folder or a file, or cannot be written.
        """
        path = path.absolute()  # `.` has no name of its own
        if path.exists() and not (path / _MARK).is_file() and not _is_empty(path):
            raise FileUnusable(
                f"--out: {path} exists and is not a folder of an earlier quickstart; pass the name of a new "
                "folder"
            )
        try:
            earlier = set_aside(path) if not _is_empty(path) else None
            path.mkdir(parents=True, exist_ok=True)
            (path / _MARK).touch()
            with as_file(files("studies.quickstart")) as shipped:
                shutil.copytree(shipped / "model", path / "model")
                for silo in SILOS:
                    (path / silo).mkdir()
                    for side in _SIDES:
                        rows = shipped / "data" / f"{silo}.{side}.jsonl"
                        shutil.copyfile(rows, path / silo / f"{side}.jsonl")
            (path / "plan.json").write_text(json.dumps(plan(), indent=2) + "\n")
        except OSError as error:
            raise FileUnusable(f"--out: {complaint(error)}") from error
        return cls(path, earlier)

    def silo_file(self, silo: str) -> Path:
        return self.path / silo / "silo.toml"

    def write_silos(self, url: str) -> None:
        """Write the silo.toml of each silo, with the coordinator's URL."""
        for silo in SILOS:
            self.silo_file(silo).write_text(
                f'url = "{url}"\n'
                'folder = "state"\n'
                'model = "../model"\n'
                'train = "train.jsonl"\n'
                'test = "test.jsonl"\n'
                'metrics = ["exact_match"]\n'
                "validation_share = 0.0  # 8 examples are few, and all of them train\n"
                "threads = 1\n"
            )


def _is_empty(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))
