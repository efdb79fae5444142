"""Run a real coordinator, `tessera serve` on a SQLite file, for the duration of a block."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from client_agent.errors import CoordinatorStopped

TESSERA = (str(Path(sys.executable).parent / "tessera"),)
_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RunningCoordinator:
    """The URL, operator token and process id of a coordinator."""

    url: str
    token: str
    process: int


def quiet_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without TESSERA_ variables and proxies for 127.0.0.1."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return inherited | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | changes


@contextmanager
def running_coordinator(folder: Path, host: str = "127.0.0.1") -> Iterator[RunningCoordinator]:
    """Run a coordinator with its database and coordinator.log in a folder, on an address of this machine.

    Raises:
        CoordinatorStopped: the coordinator does not become ready.
    """
    folder.mkdir(parents=True, exist_ok=True)
    token = f"tsr_adm_{secrets.token_urlsafe(32)}"
    port = _free_port(host)
    environment = quiet_environment(
        TESSERA_DATABASE_URL=f"sqlite:///{folder / 'tessera.db'}",
        TESSERA_ADMIN_TOKEN=token,
        TESSERA_PUBLIC_NAMES=host,
        TESSERA_RETRY_SECONDS="1",
        TESSERA_TICK_SECONDS="0.2",
    )
    log = folder / "coordinator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*TESSERA, "serve", "--host", host, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            url = f"http://{host}:{port}"
            _wait_until_ready(url, process, log)
            yield RunningCoordinator(url, token, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CoordinatorStopped(f"the coordinator stopped; see {log}")
        try:
            if httpx.get(f"{url}/readyz", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise CoordinatorStopped(f"the coordinator was not ready within {_READY_SECONDS:.0f} s; see {log}")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
