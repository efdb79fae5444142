"""The replaced parts of the product: clocks, secrets, random numbers, threads and the disk.

The database's clock is SQLite's own strftime, which `storage` replaces in every connection. Everything is
put back at the end.
"""

from __future__ import annotations

import random
import secrets
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio._core import _tasks

from coordinator.aggregation import output_writer

EPOCH = 1_800_000_000.0
"""When every schedule begins, seconds since 1970."""


class InTurn:
    """A pool that executes work immediately, in place of the writer threads of an aggregation."""

    def __init__(self, *_: object) -> None:
        pass

    def shutdown(self, **_: object) -> None:
        """Return immediately: no work is pending."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class NoLoop:
    """The parts of an event loop that the web framework uses: thread work runs here, no cancellation."""

    shield = False

    def create_cancel_scope(self, **_: object) -> NoLoop:
        """Cancel nothing."""
        return NoLoop()

    def __enter__(self) -> NoLoop:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def checkpoint_if_cancelled(self) -> None:
        """Continue."""

    async def run_sync_in_worker_thread(
        self, work: Callable[..., Any], args: tuple[Any, ...], **_: object
    ) -> Any:
        """Run the work immediately."""
        return work(*args)


@contextmanager
def replaced_seams(
    seed: int, clock: Callable[[], float], note_fault: Callable[[str, BaseException], None]
) -> Iterator[None]:
    """Replace the clocks by `clock` (virtual seconds since the beginning) and all chance by the seed's.

    Nothing is logged, but the errors that the product would log are passed to `note_fault`.
    """
    chance = random.Random(f"secrets {seed}")
    state, logs = random.getstate(), structlog.get_config()
    random.seed(f"dice {seed}")

    def report_fault(_: object, __: str, line: Any) -> Any:
        if line.get("exc_info"):
            error = sys.exc_info()[1]
            if error is not None:
                note_fault(line["event"], error)
        raise structlog.DropEvent

    def token_bytes(count: int | None = None) -> bytes:
        return chance.randbytes(count or 32)

    seams: list[tuple[object, str, object]] = [
        (time, "time", lambda: EPOCH + clock()),
        (time, "time_ns", lambda: int((EPOCH + clock()) * 1e9)),
        (time, "monotonic", clock),
        (time, "perf_counter", clock),
        (secrets, "token_bytes", token_bytes),
        (secrets, "token_hex", lambda count=None: token_bytes(count).hex()),
        (
            secrets,
            "token_urlsafe",
            lambda count=None: urlsafe_b64encode(token_bytes(count)).rstrip(b"=").decode(),
        ),
        *((module, "get_async_backend", NoLoop) for module in (anyio.to_thread, anyio.lowlevel, _tasks)),
        (output_writer, "ThreadPoolExecutor", InTurn),
    ]
    with ExitStack() as stack:
        for owner, name, value in seams:
            stack.enter_context(patch.object(owner, name, value))
        structlog.configure(processors=[report_fault])
        try:
            yield
        finally:
            structlog.configure(**logs)
            random.setstate(state)
