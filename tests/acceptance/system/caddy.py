"""The real Caddy with deploy/Caddyfile as it is, before replicas that a name server names.

In Compose the name `coordinator` has an address per replica; here a file of hosts says so, which only Caddy
sees. Its ports are the file's own: one such Caddy runs at a time.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.acceptance.system.programs import program

CADDYFILE = Path(__file__).parents[3] / "deploy" / "Caddyfile"
URL = "https://localhost:8443"
PORT_BEHIND = 8000
_ALIVE = "http://127.0.0.1:8081/"
_READY_SECONDS = 30.0
# A mount of one's own needs privileges; what is mounted is gone with the process.
_WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


@dataclass(frozen=True)
class Caddy:
    """A running Caddy: its log, and the certificate authority of its certificate."""

    log: Path
    trust: ssl.SSLContext


@contextmanager
def caddy(folder: Path, addresses: Sequence[str], **environment: str) -> Iterator[Caddy]:
    """Run Caddy before coordinators at these addresses until the block ends."""
    names = ["127.0.0.1 localhost", *(f"{address} coordinator" for address in addresses)]
    (folder / "hosts").write_text("\n".join(names) + "\n")
    run = [program("caddy"), "run", "--config", str(CADDYFILE), "--adapter", "caddyfile"]
    log = folder / "caddy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program("unshare"), "--mount", "sh", "-c", _WITH_HOSTS, str(folder / "hosts"), *run],
            env=os.environ | {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)} | environment,
            stdout=output,
            stderr=output,
        )
    try:
        authority = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        _wait(process, log, authority)
        yield Caddy(log, ssl.create_default_context(cafile=str(authority)))
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(process: subprocess.Popen[bytes], log: Path, authority: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not (_answers() and authority.exists()):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def _answers() -> bool:
    try:
        return httpx.get(_ALIVE, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
