"""Servers in threads of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.scene.waiting import wait_until


@contextmanager
def running(server: uvicorn.Server) -> Iterator[None]:
    """Run a server until the block ends."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
