"""A coordinator in a process of its own, whose processor time and memory can be measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.scene.coordinator import ADMIN_TOKEN, SIGNING_KEY, Served

_RESET_PEAK = "5"


@dataclass
class ServedProcess(Served):
    """A running `tessera serve`."""

    log: Path = Path()

    def __post_init__(self) -> None:
        self.process = psutil.Process(self._server.pid)  # type: ignore[attr-defined]

    def cpu_seconds(self) -> float:
        """Return the processor seconds of the process so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def forget_peak(self) -> int:
        """Reset the peak of memory; return the bytes in use."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text(_RESET_PEAK)
        return int(self.process.memory_info().rss)

    def peak_bytes(self) -> int:
        """Return the peak of memory since then, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(peak) * 1024

    def stop(self) -> None:
        for opened in self._opened:
            opened.close()
        if self._database is not None:
            self._database.close()
        program: subprocess.Popen[str] = self._server  # type: ignore[assignment]
        program.send_signal(signal.SIGTERM)
        with program:  # closes what it printed to
            pass
        assert program.wait(timeout=30) == 0, self.log.read_text()[-2000:]


def start_process(database_url: str, folder: Path, *under: str, **settings: Any) -> ServedProcess:
    """Start a coordinator, `under` another program if any, and wait until it answers."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")}
    values = {
        "database_url": database_url,
        "admin_token": ADMIN_TOKEN,
        "signing_key": SIGNING_KEY,
        "failed_enrolments_per_minute": 1000,
        "failed_tokens_per_minute": 1000,
        "tick_seconds": 0.2,
        "retry_seconds": 0.1,
        "log_level": "info",
    } | settings
    environment = {f"TESSERA_{name.upper()}": str(value) for name, value in values.items()}
    log = folder / "coordinator.log"
    with log.open("wb") as errors:
        program = subprocess.Popen(
            [*under, sys.executable, "-c", _PROGRAM],
            env=variables | environment | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    url = _announced(program.stdout or [], log)
    httpx.get(f"{url}/nowhere", timeout=30, verify=False)
    return ServedProcess(url, database_url, program, None, log=log)  # type: ignore[arg-type]


_PROGRAM = "from coordinator.server import serve; serve(port=0)"


def _announced(output: Sequence[str] | Any, log: Path) -> str:
    for line in output:
        if "listens on" in line:
            return str(line.split()[-1])
    raise AssertionError(log.read_text()[-3000:])
