from __future__ import annotations

import base64
import hashlib
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI, Request

from coordinator import problems
from coordinator.bounded_body import ReceivedBody, receive
from tests.served import slug

CAP = 3 * 2**20
TYPE = "application/x-test"
OTHER_DIGEST = "sha-256=:" + base64.b64encode(b"x" * 32).decode() + ":"


async def _body(request: Request) -> AsyncIterator[ReceivedBody]:
    async with receive(request, max_bytes=CAP, media_types={TYPE}) as received:
        yield received


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A small service that receives one kind of body and says what it got."""
    app = FastAPI()
    problems.install(app)

    @app.put("/body")
    def put(body: Annotated[ReceivedBody, Depends(_body)]) -> dict[str, str | int | None]:
        seen = hashlib.sha256(body.file.read()).hexdigest()
        assert body.digest == f"sha256:{seen}"
        return {"digest": body.digest, "bytes": body.bytes, "encoding": body.encoding}

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def _headers(body: bytes, **changes: str) -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    headers = {"content-type": TYPE, "content-digest": f"sha-256=:{digest}:"}
    return headers | {name.replace("_", "-"): value for name, value in changes.items()}


@pytest.mark.parametrize("size", [0, 1, 2**20, CAP])
def test_a_body_arrives_whole_with_its_digest(url: str, size: int) -> None:
    body = b"x" * size
    answer = httpx.put(f"{url}/body", content=body, headers=_headers(body, content_encoding="zstd"))
    assert answer.json() == {
        "digest": "sha256:" + hashlib.sha256(body).hexdigest(),
        "bytes": size,
        "encoding": "zstd",
    }


def test_an_announced_body_over_the_cap_is_refused_before_a_byte_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"PUT /body HTTP/1.1\r\nHost: x\r\nContent-Length: {CAP + 1}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in _headers(b"").items())
        connection.sendall(f"{head}\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_passing_the_cap_is_cut_off(url: str) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(CAP // 65536 + 1):
            yield b"x" * 65536

    answer = httpx.put(f"{url}/body", content=chunks(), headers=_headers(b""))
    assert (answer.status_code, slug(answer)) == (413, "body-too-large")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("changes", "status", "expected"),
    [
        (
            {"content_digest": "sha-256=:" + base64.b64encode(b"x" * 32).decode() + ":"},
            400,
            "digest-mismatch",
        ),
        ({"content_digest": "md5=:AAAA:"}, 400, "digest-missing"),
        ({"content_digest": "sha-256=:AAAA:"}, 400, "digest-missing"),
        ({"content_digest": ""}, 400, "digest-missing"),
        ({"content_type": "application/json"}, 415, "media-type"),
        ({"content_type": ""}, 415, "media-type"),
        ({"content_encoding": "gzip"}, 415, "content-encoding"),
        ({"content_encoding": "zstd, zstd"}, 415, "content-encoding"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(
    url: str, changes: dict[str, str], status: int, expected: str
) -> None:
    answer = httpx.put(f"{url}/body", content=b"hello", headers=_headers(b"hello", **changes))
    assert (answer.status_code, slug(answer)) == (status, expected)


def test_a_peer_that_hangs_up_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    host, port = url.removeprefix("http://").split(":")
    caplog.set_level(logging.INFO)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = "PUT /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in _headers(b"").items())
        connection.sendall(f"{head}\r\nhello".encode())
        time.sleep(0.1)
    deadline = time.monotonic() + 5
    while "body-incomplete" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "body-incomplete" in caplog.text


def test_a_full_disk_is_said_and_nothing_is_wrong_when_there_is_space_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"x" * CAP
    with monkeypatch.context() as full:
        full.setattr(tempfile, "TemporaryFile", lambda **_: os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b"))
        answer = httpx.put(f"{url}/body", content=body, headers=_headers(body))
    assert (answer.status_code, slug(answer)) == (507, "storage-full")
    assert int(answer.headers["retry-after"]) > 0
    assert httpx.put(f"{url}/body", content=body, headers=_headers(body)).status_code == 200
