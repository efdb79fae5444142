"""What `make` says to a newcomer, with programs that do nothing in place of pip and Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _make(*words: str) -> str:
    # The flags of a `make test` around this test would be those of this make too.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")
    }
    command = ["make", "--no-print-directory", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_setup_says_one_line_before_and_one_after(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python", "uv"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / "bin" / name).chmod(0o755)
    before, after = _make("setup", f"VENV={tmp_path}", "PYTHON=true").splitlines()
    assert before.startswith(f"Installing Tessera with PyTorch into {tmp_path}: two to five minutes")
    assert after.startswith(f"Installed. Next: source {tmp_path}/bin/activate, then tessera quickstart")
    assert (tmp_path / ".ready").is_file()


@pytest.mark.parametrize(
    ("words", "fetched"), [((), "examples.real_models --only smollm2"), (("ALL=1",), "examples.real_models ")]
)
def test_real_models_fetches_one_model_by_default(words: tuple[str, ...], fetched: str) -> None:
    command = _make("--dry-run", "real-models", *words).splitlines()[-1]
    assert command.endswith(f"-m {fetched}")
