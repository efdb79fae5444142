"""The log of what an agent sends to its coordinator: one line per request, written before the request leaves.

Requests that only fetch (GET) carry nothing of the silo and are left out. Each try of a request is a line.
Progress reports, a hundred times as many as all else, have a file of their own, so that they do not crowd out
updates. Both files are append-only, and bounded: of each the newest bytes stay.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
from pydantic import TypeAdapter, ValidationError

from client_agent.agent_entries import SENT as SENT
from client_agent.errors import AgentError
from schemas.wire.digests import digest_of

REQUESTS: Final = "requests"
PROGRESS: Final = "progress"
_ROUND = re.compile(r"/rounds/(\d+)/")
_SHOWN = (PROGRESS, "scores")
_KINDS: Final = (
    (re.compile(r"^/v1/enrolments$"), "enrolment"),
    (re.compile(r"^/v1/me/key$"), "new key"),
    (re.compile(r"/join$"), "join"),
    (re.compile(r"/update$"), "update"),
    (re.compile(r"/scores$"), "scores"),
    (re.compile(r"/progress$"), PROGRESS),
    (re.compile(r"/ready$"), "ready for the sum"),
    (re.compile(r"/secure-sum/\d+/2$"), "masked update"),
    (re.compile(r"/secure-sum/\d+/\d+$"), "step of the sum"),
    (re.compile(r"/alignments/[^/]+/acceptance$"), "alignment test"),
    (re.compile(r"/alignments/[^/]+$"), "alignment pack"),
)
_OLD_FILES = 3


class SentLogUnwritable(AgentError):
    """The log of sent requests cannot be written, so nothing is sent."""

    def __init__(self, file: Path, error: OSError) -> None:
        super().__init__(
            f"{file} cannot be written ({error.strerror}), and nothing is sent that is not in it; free disk "
            "space, or correct the folder's owner"
        )


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request.

    Attributes:
        at: when it was about to leave, RFC 3339, by this machine's clock.
        kind: what its body is.
        bytes, sha256: of the body as it leaves; an empty body has no digest.
        body: the body itself, of scores and progress reports.
    """

    at: str
    round: int | None
    kind: str
    method: str
    route: str
    bytes: int
    sha256: str | None
    body: str | None = None


_line: TypeAdapter[SentRequest] = TypeAdapter(SentRequest)


class SentLog:
    """The log in an agent's folder; one process writes at a time, since the folder is locked."""

    def __init__(self, folder: Path, file_bytes: int = 4 * 2**20) -> None:
        self._folder = folder / SENT
        self._file_bytes = file_bytes

    def record(self, request: httpx.Request) -> None:
        """Append a request that is about to leave.

        Raises:
            SentLogUnwritable: it cannot be written.
        """
        # GET requests carry nothing of the silo.
        if request.method == "GET":
            return
        # Without the path of a proxy, so that routes can be compared between installations.
        route = request.url.path[request.url.path.find("/v1/") :]
        body, round_number = request.read(), _ROUND.search(route)
        kind = next((kind for pattern, kind in _KINDS if pattern.search(route)), "other")
        if kind == "join" and body:
            kind = "join with a sketch"
        entry = SentRequest(
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            round=int(round_number[1]) if round_number is not None else None,
            kind=kind,
            method=request.method,
            route=route,
            bytes=len(body),
            sha256=digest_of(body).removeprefix("sha256:") if body else None,
            body=body.decode() if kind in _SHOWN else None,
        )
        self._append(self._file(kind), (json.dumps(asdict(entry)) + "\n").encode())

    def entries(self) -> Iterator[SentRequest]:
        """Yield the requests that the log still has, progress reports last; damaged lines are skipped."""
        for name in (REQUESTS, PROGRESS):
            files = [self._old(self._folder / f"{name}.jsonl", place) for place in range(_OLD_FILES, 0, -1)]
            for file in (*files, self._folder / f"{name}.jsonl"):
                yield from _read(file)

    def _file(self, kind: str) -> Path:
        return self._folder / f"{PROGRESS if kind == PROGRESS else REQUESTS}.jsonl"

    def _append(self, file: Path, line: bytes) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if file.exists() and file.stat().st_size + len(line) > self._file_bytes:
                self._rotate(file)
            handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line)
                # Before the request leaves. Progress reports are too many to be synced one by one, and carry
                # only counts.
                if file.stem != PROGRESS:
                    os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise SentLogUnwritable(file, error) from error

    def _rotate(self, file: Path) -> None:
        # From the oldest on, which the next one replaces.
        for place in range(_OLD_FILES, 1, -1):
            younger = self._old(file, place - 1)
            if younger.exists():
                younger.replace(self._old(file, place))
        file.replace(self._old(file, 1))

    def _old(self, file: Path, place: int) -> Path:
        return file.with_suffix(f".{place}.jsonl")


def _read(file: Path) -> Iterator[SentRequest]:
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield _line.validate_json(line)
        except ValidationError:  # a crash cut the line
            continue
