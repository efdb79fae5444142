"""Rotation from commit to commit: the shard of the slow tests, and the seeds of the fault schedules.

The commit decides, not the clock: a run can be repeated, and consecutive commits cover everything.
"""

from __future__ import annotations

import hashlib
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARDS = 10
SEEDS = 1_000_000
"""First seeds are below this number."""


def commit_number() -> int:
    """Return the number of commits up to this one, or of days where the history is absent or cut."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        digest = _git("rev-parse", "HEAD")
        return int(digest, 16) if digest else _days(datetime.now(UTC).date())
    return int(_git("rev-list", "--count", "HEAD"))


def first_seed() -> int:
    """Return the first seed of this commit's fault schedules: unlike those of the commits beside it."""
    return _hashed(str(commit_number())) % SEEDS


def shard_of(test: str) -> int:
    """Return the shard of a test, 0 to `SHARDS` - 1, from its id alone."""
    return _hashed(test) % SHARDS


def shard_of_commit() -> int:
    """Return the shard of this commit; consecutive commits rotate through all shards."""
    return commit_number() % SHARDS


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _days(today: date) -> int:
    return today.toordinal()


def _git(*arguments: str) -> str:
    """Return what git prints; nothing where there is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
