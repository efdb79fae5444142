"""What CI promises: pytest's closing line comes last, and every test is in one group that a target runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def last_command(target: str) -> str:
    """Return the last command that make would run."""
    # Under `make test` these variables would have this make report its folder, as a make called by make does.
    inherited = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    command = ["make", "-n", target]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def selected(target: str) -> str:
    """Return the expression by which a target selects tests."""
    return re.sub(r'.* -m (?:"(.+)"|(\w+))$', r"\1\2", last_command(target))


def test_ci_ends_with_pytest() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8").rstrip().splitlines()
    assert script[-1] == "make test"
    assert " -m pytest " in last_command("test")


def test_every_group_of_tests_has_a_target() -> None:
    groups = [selected(target) for target in ("test", "test-slow", "test-long", "test-system")]
    assert groups == [
        "not slow and not long and not gpu and not system",
        "slow and not long",
        "long",
        "system",
    ]
