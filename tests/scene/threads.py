"""Tasks that run at once, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")


def run_at_once(
    tasks: Mapping[Key, Callable[[], object]],
    seconds: float = 120.0,
    barrier: threading.Barrier | None = None,
) -> dict[Key, BaseException]:
    """Run tasks until all have ended; return what they raised, by key.

    Args:
        tasks: called without arguments.
        seconds: the longest time that they may take together.
        barrier: one that the tasks wait at, which breaks when a task fails.

    Raises:
        AssertionError: a task has not ended in time.
    """
    errors: dict[Key, BaseException] = {}

    def run(key: Key) -> None:
        try:
            tasks[key]()
        except BaseException as error:
            errors[key] = error
            if barrier is not None:
                barrier.abort()

    threads = [threading.Thread(target=run, args=(key,), daemon=True) for key in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"a task has not ended in {seconds} s"
    return errors
