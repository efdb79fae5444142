"""S3 for tests and benchmarks: moto's server, a process of its own, whose log counts the requests.

It needs libraries that this project has in other versions, so it runs from an environment of its own:
`make test-s3` makes one (requirements/s3.txt).
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

_WAIT_SECONDS = 60.0
_BUCKET = "payloads"
_REQUEST = re.compile(rf"(GET|HEAD|PUT|POST|DELETE) /{_BUCKET}/\S+ HTTP/")
"""A request for an object, not for the bucket."""


class NoServer(Exception):
    """There is no `moto_server` on PATH."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server with one bucket.

    Attributes:
        bucket: URL of the bucket with a prefix of its own, as a store is opened once per URL.
        environment: the variables by which a store reaches it.
        log: a file with one line per request.
    """

    bucket: str
    environment: dict[str, str]
    log: Path

    def requests(self, method: str) -> int:
        """Return the number of requests for objects so far."""
        return _REQUEST.findall(self.log.read_text("utf-8")).count(method)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server for the duration of a block; its log is in a folder.

    Raises:
        NoServer: moto is not installed.
    """
    program = shutil.which("moto_server")
    if program is None:
        raise NoServer("moto_server is not on PATH; run `make test-s3`, and add build/s3/bin to PATH")
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = int(probe.getsockname()[1])
    url, log = f"http://127.0.0.1:{port}", folder / "s3.log"
    environment = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    with log.open("wb") as lines, subprocess.Popen([program, "-p", str(port)], stderr=lines) as process:
        try:
            _wait_for(url)
            httpx.put(f"{url}/{_BUCKET}", trust_env=False).raise_for_status()
            yield S3Server(f"s3://{_BUCKET}/tessera-{port}", environment, log)
        finally:
            process.kill()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
