"""Example packages, installed into folders of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.scene.agent_processes import EXAMPLES


def install_example(folder: Path, name: str) -> Path:
    """Install a package of examples/ into a folder with pip; return the folder."""
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(EXAMPLES / name)], check=True)
    return folder
