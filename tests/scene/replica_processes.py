"""`tessera serve` in processes of its own: killed, frozen, and started again."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from coordinator.observability.fault_points import VARIABLE, Place
from tests.scene.coordinator import ADMIN_TOKEN, SIGNING_KEY

READY_SECONDS = 60.0
_FIRST_PORT, _END_PORT = 10_000, 32_768
_begin = _FIRST_PORT + os.getpid() * 97 % (_END_PORT - _FIRST_PORT)  # apart from other processes of the tests
_ports = itertools.chain(range(_begin, _END_PORT), range(_FIRST_PORT, _begin))
_COMMAND = [sys.executable, "-c", "from schemas.command import main; main()"]


def free_port() -> int:
    """Find a port that nobody listens on, below those that the system gives to connections meanwhile."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


class Coordinator:
    """One replica on one port, which stays the same after restarts."""

    def __init__(
        self,
        database_url: str,
        log: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        **settings: str,
    ) -> None:
        self.host = host
        self.port = port if port is not None else free_port()
        self.url = f"http://{host}:{self.port}"
        self.log = log
        self._environment = os.environ | {
            "TESSERA_DATABASE_URL": database_url,
            "TESSERA_ADMIN_TOKEN": ADMIN_TOKEN,
            "TESSERA_SIGNING_KEY": SIGNING_KEY,
            "TESSERA_LEASE_SECONDS": "1",
            "TESSERA_TICK_SECONDS": "0.05",
            "TESSERA_RETRY_SECONDS": "0.1",
            "TESSERA_AGGREGATION_BLOCK_MIB": "1",
            "TESSERA_POLLS_PER_SECOND": "1000",  # these agents poll like nobody should
            "TESSERA_FAILED_ENROLMENTS_PER_MINUTE": "1000",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, crash: Place | None = None, *, freeze: bool = False) -> float:
        """Start, with an optional crash or freeze at a marked place; wait until it is ready.

        Gives the seconds that took.
        """
        armed = {VARIABLE: f"{crash}:1{':stop' if freeze else ''}"} if crash else {}
        began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_COMMAND, "serve", "--host", self.host, "--port", str(self.port)],
                env=self._environment | armed,
                stdout=log,
                stderr=log,
            )
        while not self._answers():
            if self.process.poll() is not None:
                if crash is not None and self.process.returncode == -signal.SIGKILL:
                    break  # it came to the place before anybody saw it ready
                raise AssertionError(f"it ended: {self._last_words()}")
            assert time.monotonic() < began + READY_SECONDS, self._last_words()
            time.sleep(0.02)
        return time.monotonic() - began

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5, verify=False).status_code == 200
        except httpx.TransportError:
            return False

    def count_logged(self, event: str) -> int:
        """Count the log entries of an event."""
        return self.log.read_text().count(event)

    @property
    def errors(self) -> list[str]:
        """Return logged errors that no kill or freeze excuses, such as a request answered 500."""
        return [line[:2000] for line in self.log.read_text().splitlines() if '"level": "error"' in line]

    def _last_words(self) -> str:
        return self.log.read_text()[-3000:]

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def is_frozen(self) -> bool:
        """Whether the process is stopped."""
        assert self.process is not None
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def has_died(self) -> bool:
        """Whether the process has died at its marked place."""
        assert self.process is not None
        return self.process.poll() is not None

    def freeze(self) -> None:
        """Stop the process with SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class CrashRestarter(threading.Thread):
    """Restarts a coordinator that died at its place, with the next place; kills no process itself."""

    def __init__(self, coordinator: Coordinator, places: list[Place]) -> None:
        super().__init__(name="undertaker", daemon=True)
        self.died_at: list[Place] = []
        self.back_after: list[float] = []
        self._coordinator = coordinator
        self._left = list(places)
        self._done = threading.Event()
        self._next()

    def run(self) -> None:
        """Until `finish`."""
        while not self._done.wait(0.01):
            process = self._coordinator.process
            if process is None or process.poll() is None:
                continue
            assert process.returncode == -signal.SIGKILL, f"it ended by itself, with {process.returncode}"
            if self._armed is not None:
                self.died_at.append(self._armed)
            self._next()

    def _next(self) -> None:
        self._armed = self._left.pop(0) if self._left else None
        self.back_after.append(self._coordinator.start(self._armed))

    def finish(self) -> None:
        """Start nothing any more."""
        self._done.set()
        self.join()
