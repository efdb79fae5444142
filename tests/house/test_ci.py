"""CI: pytest as last command, one group for a test, and all shards in five commits."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.house import rotation

ROOT = Path(__file__).parents[2]


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
    return re.sub(r'.* -m (?:"(.+)"|(\w+))( --shard \w+)?$', r"\1\2", last_command(target))


def test_ci_ends_with_pytest() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8").rstrip().splitlines()
    assert script[-1] == "make test"
    assert " -m pytest " in last_command("test")


def test_groups_of_tests_have_make_targets() -> None:
    groups = [selected(target) for target in ("test", "test-slow", "test-long", "test-system")]
    assert groups == [
        "not slow and not long and not gpu and not system",
        "slow and not long",
        "long",
        "system",
    ]


def test_consecutive_commits_run_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = set()
    for number in range(700, 700 + rotation.SHARDS):
        monkeypatch.setattr(rotation, "commit_number", lambda number=number: number)
        turns.add(rotation.shard_of_commit())
    assert turns == set(range(rotation.SHARDS))


def test_shards_share_the_tests_evenly() -> None:
    shards = [rotation.shard_of(f"tests/a/test_{number}.py::test_b") for number in range(1000)]
    even = 1000 / rotation.SHARDS
    assert all(0.75 * even < shards.count(shard) < 1.25 * even for shard in range(rotation.SHARDS))


def test_neighbouring_commits_have_different_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    for number in range(700, 720):
        monkeypatch.setattr(rotation, "commit_number", lambda number=number: number)
        seeds.append(rotation.first_seed())
    assert min(abs(a - b) for a in seeds for b in seeds if a is not b) > 40


@pytest.mark.parametrize("history", ["", "true"])
def test_a_checkout_without_history_has_a_shard(monkeypatch: pytest.MonkeyPatch, history: str) -> None:
    answers = {"--is-shallow-repository": history, "HEAD": "ab12" if history else ""}
    monkeypatch.setattr(rotation, "_git", lambda *arguments: answers[arguments[-1]])
    assert rotation.shard_of_commit() in range(rotation.SHARDS)
