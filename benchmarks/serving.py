"""A real coordinator in its own process, its cost, and an operator's calls to it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.memory import peak_rss_mib

CHECKOUT = Path(__file__).parents[1]
_READY_SECONDS = 60.0
_LOG_LINES = 20


class ServerFailed(Exception):
    """The coordinator or a client of a benchmark failed; the message says how."""


class Coordinator:
    """`tessera serve`, seen from outside."""

    def __init__(self, url: str, token: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.process = psutil.Process(process.pid)
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        )

    def cpu_seconds(self) -> float:
        """Return the processor time that the server has used so far, user and system."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def peak_rss_mib(self) -> float:
        """Return the largest resident memory the server ever had, MiB."""
        return peak_rss_mib(self.process.pid)

    def get(self, path: str) -> Any:
        """Send a GET as an admin, and return the answer."""
        return self._call("GET", path, None)

    def post(self, path: str, content: object = None) -> Any:
        """Send a POST as an admin, and return the answer."""
        return self._call("POST", path, content)

    def close(self) -> None:
        """Close the connections; the coordinator continues to run."""
        self._http.close()

    def _call(self, method: str, path: str, content: object) -> Any:
        answer = self._http.request(method, path, json=content)
        if answer.is_error:
            raise ServerFailed(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()


@contextmanager
def running(
    folder: Path,
    database_url: str | None,
    settings: Mapping[str, str],
    *,
    counts: Path | None = None,
    checkout: Path = CHECKOUT,
) -> Iterator[Coordinator]:
    """Run `tessera serve` for the duration of the block; its log is coordinator.log in the folder.

    Without a `database_url` the database is a SQLite file in the folder. With `counts` the server's
    transactions and statements are counted, and written to this file at the end (`profiled_server`).
    `checkout` has the code to run.
    """
    token = f"tsr_adm_{secrets.token_urlsafe(32)}"
    environment = {
        **os.environ,
        "TESSERA_DATABASE_URL": database_url or f"sqlite:///{folder / 'tessera.db'}",
        "TESSERA_ADMIN_TOKEN": token,
        "TESSERA_SIGNING_KEY": secrets.token_urlsafe(32),
        "PYTHONPATH": str(checkout),  # whichever is installed
        "TESSERA_POLLS_PER_SECOND": "1000",  # rounds without training follow each other faster than that
        **settings,
    }
    tessera = str(Path(sys.executable).parent / "tessera")
    log = folder / "coordinator.log"
    with log.open("wb") as output:
        if database_url is not None:
            subprocess.run([tessera, "migrate"], check=True, env=environment, stdout=output, stderr=output)
        program = [tessera]
        if counts is not None:
            program = [sys.executable, "-m", "benchmarks.profiled_server", str(counts)]
        process = subprocess.Popen(
            [*program, "serve", "--host", "127.0.0.1", "--port", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            with closing(Coordinator(_url(process, log), token, process)) as coordinator:
                yield coordinator
        finally:
            process.terminate()
            process.wait(timeout=30)


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server prints its address, and return it."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text("utf-8").splitlines():
            if line.startswith("Tessera listens on "):
                return line.rpartition(" ")[2]
        time.sleep(0.05)
    # The log is in a temporary folder, which is gone when somebody reads the message.
    ending = "\n".join(log.read_text("utf-8").splitlines()[-_LOG_LINES:])
    raise ServerFailed(f"the coordinator did not start; the end of its log:\n{ending}")
