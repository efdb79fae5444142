"""The least cost of durable uploads: an application that hashes and stores a body, and checks nothing.

Every body is a row in its own transaction, as in the coordinator. The time of the same uploads through this
application is the share of the server, of the database and of the load itself.
"""

from __future__ import annotations

import hashlib
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import psycopg
from anyio import to_thread
from starlette.types import Receive, Scope, Send

from benchmarks.serving import ServerFailed

_URL = "BARE_STORE_URL"
_CONNECTIONS = 20
_READY_SECONDS = 30.0
_QUIET = ("--log-level", "warning", "--no-access-log")
_idle: queue.LifoQueue[psycopg.Connection] = queue.LifoQueue()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Store a request's body; 201 once that is committed. Connects when it starts."""
    if scope["type"] == "lifespan":
        await receive()
        for _ in range(_CONNECTIONS):
            _idle.put(psycopg.connect(os.environ[_URL], autocommit=True))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    await to_thread.run_sync(_store, pieces)
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _store(pieces: list[bytes]) -> None:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    connection = _idle.get()
    try:
        connection.execute(
            "INSERT INTO bodies (digest, body) VALUES (%s, %s)", (digest.hexdigest(), b"".join(pieces))
        )
    finally:
        _idle.put(connection)


@contextmanager
def running(database_url: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run the application on its own database for the duration of the block; yield its URL and process."""
    url = database_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bodies (id bigserial PRIMARY KEY, digest text, body bytea)")
        connection.execute("ALTER TABLE bodies ALTER COLUMN body SET STORAGE EXTERNAL")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "benchmarks.bare_store:app", "--port", str(port), *_QUIET],
        env={**os.environ, _URL: url},
    )
    try:
        where = f"http://127.0.0.1:{port}"
        _wait_for(process, where)
        yield where, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(process: subprocess.Popen[bytes], where: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.put(where, content=b"", trust_env=False).raise_for_status()
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise ServerFailed("the bare store did not start")
