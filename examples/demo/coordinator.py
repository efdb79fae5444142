"""Start a real coordinator on a SQLite file, and ask it things over HTTP as an operator does."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from examples.demo.silos import TESSERA

Answer = dict[str, Any]


class DemoFailed(Exception):
    """Something did not work; the message says where to look."""


class Operator:
    """An operator's HTTP calls."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        )

    def get(self, path: str) -> Answer:
        """Read one thing."""
        return self._call("GET", path)

    def post(self, path: str, content: object = None) -> Answer:
        """Create or change one thing."""
        return self._call("POST", path, content)

    def put(self, path: str, content: object) -> Answer:
        """Store one thing."""
        return self._call("PUT", path, content)

    def every(self, path: str) -> list[Answer]:
        """Read all pages of a list."""
        items: list[Answer] = []
        after: str | None = None
        while True:
            page = self.get(f"{path}?limit=100" + (f"&after={after}" if after else ""))
            items += page["items"]
            after = page["next"]
            if after is None:
                return items

    def _call(self, method: str, path: str, content: object = None) -> Answer:
        answer = self._client.request(method, path, json=content)
        if answer.is_error:
            raise DemoFailed(f"{method} {path}: {answer.status_code} {answer.text}")
        return json.loads(answer.content) if answer.content else {}


@contextmanager
def running_coordinator(folder: Path) -> Iterator[Operator]:
    """Run `tessera serve` as long as the block lasts; its log is coordinator.log in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    token = f"tsr_adm_{secrets.token_urlsafe(32)}"
    port = _free_port()
    environment = {
        **os.environ,
        "TESSERA_DATABASE_URL": f"sqlite:///{folder / 'tessera.db'}",
        "TESSERA_ADMIN_TOKEN": token,
        "TESSERA_RETRY_SECONDS": "1",
        "TESSERA_TICK_SECONDS": "0.2",
    }
    log = folder / "coordinator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*TESSERA, "serve", "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            operator = Operator(f"http://127.0.0.1:{port}", token)
            _wait_until_ready(operator.url, process, log)
            yield operator
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise DemoFailed(f"the coordinator stopped: see {log}")
        try:
            if httpx.get(f"{url}/readyz", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise DemoFailed(f"the coordinator was not ready within 30 s: see {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
