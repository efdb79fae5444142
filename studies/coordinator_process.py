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
    # Variables of a real installation must not reach the coordinator of a study.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    return inherited | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | changes


class CoordinatorProcess:
    """`tessera serve` with its database and coordinator.log in a folder, on an address of this machine.

    It keeps URL, token and database however often it is killed and started again.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._host, self._port = host, _free_port(host)
        self.url = f"http://{host}:{self._port}"
        self.token = f"tsr_adm_{secrets.token_urlsafe(32)}"
        self.log = folder / "coordinator.log"
        self._environment = quiet_environment(
            TESSERA_DATABASE_URL=f"sqlite:///{folder / 'tessera.db'}",
            TESSERA_ADMIN_TOKEN=self.token,
            TESSERA_PUBLIC_NAMES=host,
            TESSERA_RETRY_SECONDS="1",
            # A study waits for each round: the default pace would be most of its time.
            TESSERA_TICK_SECONDS="0.2",
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> int:
        """The id of the process.

        Raises:
            CoordinatorStopped: it was not started.
        """
        return self._started().pid

    def start(self) -> None:
        """Start it, or start it again, and wait until it is ready.

        Raises:
            CoordinatorStopped: it does not become ready.
        """
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*TESSERA, "serve", "--host", self._host, "--port", str(self._port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        _wait_until_ready(self.url, self._process, self.log)

    def kill(self) -> None:
        """End it as a power cut would."""
        process = self._started()
        # SIGKILL, which no handler can soften.
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End it in order, if it runs."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise CoordinatorStopped("the coordinator was not started")
        return self._process


@contextmanager
def running_coordinator(folder: Path, host: str = "127.0.0.1") -> Iterator[RunningCoordinator]:
    """Run a coordinator with its database and coordinator.log in a folder, on an address of this machine.

    Raises:
        CoordinatorStopped: the coordinator does not become ready.
    """
    coordinator = CoordinatorProcess(folder, host)
    coordinator.log.write_bytes(b"")
    try:
        coordinator.start()
        yield RunningCoordinator(coordinator.url, coordinator.token, coordinator.process)
    finally:
        coordinator.stop()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CoordinatorStopped(f"the coordinator stopped; see {log}")
        try:
            # Without the proxy of the environment, which does not reach this machine's own ports.
            if httpx.get(f"{url}/readyz", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise CoordinatorStopped(f"the coordinator was not ready within {_READY_SECONDS:.0f} s; see {log}")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        # The port is known before the start, and stays the same after a kill.
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
