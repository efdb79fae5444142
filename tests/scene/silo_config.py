"""Configuration files of a silo on the examples' data."""

from __future__ import annotations

from pathlib import Path

from tests.scene.agent_processes import EXAMPLES, MODELS

HELD_OUT = 12
"""Test examples of a silo: rounds score all of them before and after their training."""


def config(folder: Path, **changes: str) -> Path:
    """Write a silo.toml, with the first test examples of a silo of the examples beside it."""
    data = EXAMPLES / "silos" / "aster"
    test = folder / "test.jsonl"
    test.write_text("".join((data / "test.jsonl").read_text().splitlines(keepends=True)[:HELD_OUT]))
    options = {
        "url": "http://127.0.0.1:1",
        "folder": "state",
        "model": str(MODELS["S"]),
        "train": str(data / "train.jsonl"),
        "test": str(test),
    } | changes
    file = folder / "silo.toml"
    lines = [f"{name} = '{value}'\n" for name, value in options.items()]
    file.write_text("".join([*lines, "threads = 1\n", "validation_share = 0.0\n"]))
    return file


def config_beside(folder: Path, **changes: str) -> Path:
    """Write a silo.toml into the agent's folder."""
    file = config(folder, **changes)
    file.write_text(file.read_text().replace("folder = 'state'", "folder = '.'"))
    return file
