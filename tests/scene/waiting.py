"""Waiting for conditions instead of fixed times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Fact = TypeVar("Fact")


def wait_until(
    find: Callable[[], Fact | None],
    seconds: float = 120.0,
    event: str = "the awaited event",
    pause: float = 0.02,
) -> Fact:
    """Return what `find` returns as soon as that is true; the limit is for machines under load."""
    deadline = time.monotonic() + seconds
    while not (fact := find()):
        assert time.monotonic() < deadline, f"{event} did not happen in {seconds} s"
        time.sleep(pause)
    return fact
