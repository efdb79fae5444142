"""Trainer packages installed for one test, as files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

HEAD = """
from collections.abc import Mapping
import numpy as np
import torch
from client_agent.training.trainers import LocalTrainer, TrainerOptions


class Options(TrainerOptions):
    add: float = 0.5
"""

CONSTANT = """
class Trainer(LocalTrainer):
    def __init__(self, options):
        self.options = options

    def train(self, task):
        for step in range(1, task.plan.steps + 1):
            task.report(step, 1.0 / step, 7)
        return {name: values + self.options.add for name, values in task.adapter.state().items()}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, module: str, source: str) -> None:
    """Install a module as the trainer of a name; the source follows the imports and the options."""
    metadata = folder / f"{module}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[tessera.trainers]\n{name} = {module}\n")
    (folder / f"{module}.py").write_text(HEAD + source)
    monkeypatch.syspath_prepend(str(folder))
