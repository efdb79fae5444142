from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, BinaryIO

import httpx
import pytest
import uvicorn
from anyio import to_thread
from fastapi import Depends, FastAPI, Request

from coordinator.http import problems, uploads
from coordinator.http.limits.memory_budget import MemoryBudget
from coordinator.http.uploads import ReceivedBody, receive
from tests.scene.coordinator import slug

CAP = 3 * 2**20
TYPE = "application/x-test"


async def _body(request: Request) -> AsyncIterator[ReceivedBody]:
    async with receive(request, max_bytes=CAP, media_types={TYPE}) as received:
        yield received


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A small service that receives one kind of body and returns its size and digest."""
    app = FastAPI()
    problems.install(app)

    @app.put("/body")
    def put(body: Annotated[ReceivedBody, Depends(_body)]) -> dict[str, str | int | None]:
        digest = hashlib.sha256(body.file.read()).hexdigest()
        assert body.digest == f"sha256:{digest}"
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
    body = os.urandom(size)
    answer = httpx.put(f"{url}/body", content=body, headers=_headers(body, content_encoding="zstd"))
    assert answer.json() == {
        "digest": "sha256:" + hashlib.sha256(body).hexdigest(),
        "bytes": size,
        "encoding": "zstd",
    }


def _on_a_full_disk(**_: object) -> BinaryIO:
    return os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b")


def test_uploads_recover_after_a_full_disk(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"x" * CAP
    with monkeypatch.context() as full:
        full.setattr(tempfile, "TemporaryFile", _on_a_full_disk)
        answer = httpx.put(f"{url}/body", content=body, headers=_headers(body))
    assert (answer.status_code, slug(answer)) == (507, "storage-full")
    assert int(answer.headers["retry-after"]) > 0
    assert httpx.put(f"{url}/body", content=body, headers=_headers(body)).status_code == 200


def test_small_uploads_use_memory_within_its_budget(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small, smaller = b"x" * (3 * 2**19), b"x" * 2**18

    def put(body: bytes) -> int:
        return httpx.put(f"{url}/body", content=body, headers=_headers(body)).status_code

    monkeypatch.setattr(tempfile, "TemporaryFile", _on_a_full_disk)
    assert put(small) == 200
    monkeypatch.setattr(uploads, "_MEMORY", MemoryBudget(2**20, share_bytes=2**21))
    assert [put(small), put(smaller), put(small)] == [507, 200, 507]
    assert [put(smaller) for _ in range(8)] == [200] * 8, "what was taken is given back"


def test_only_uploads_without_length_reserve_much_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = [0]

    class RecordedBudget(MemoryBudget):
        def reserve(self, size: int) -> bool:
            enough = super().reserve(size)
            in_use.append(in_use[-1] + size if enough else in_use[-1])
            return enough

    monkeypatch.setattr(uploads, "_MEMORY", RecordedBudget(2**30, share_bytes=2**21))
    body = os.urandom(CAP)
    assert httpx.put(f"{url}/body", content=body, headers=_headers(body)).status_code == 200
    assert max(in_use) <= 2 * uploads._BATCH_BYTES
    pieces = iter([body[: 2**20], body[2**20 :]])
    assert httpx.put(f"{url}/body", content=pieces, headers=_headers(body)).status_code == 200
    assert max(in_use) > 2**20, "nobody knew how long this one would be"
    assert in_use[-1] == 0


@pytest.mark.parametrize("announced", [True, False])
def test_uploads_beyond_the_memory_budget_need_no_thread(
    url: str, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    """A thousand bodies would each keep a piece meanwhile, and more would come in behind it."""
    waited: list[object] = []

    class RecordedThreads:
        @staticmethod
        async def run_sync(*call: Any) -> Any:
            waited.append(call[0])
            return await to_thread.run_sync(*call)

    monkeypatch.setattr(uploads, "to_thread", RecordedThreads)
    body = os.urandom(CAP)

    def put() -> int:
        content = body if announced else iter([body[: 2**20], body[2**20 :]])
        return httpx.put(f"{url}/body", content=content, headers=_headers(body)).status_code

    assert put() == 200
    assert waited, "with room they do"
    waited.clear()
    monkeypatch.setattr(uploads, "_MEMORY", MemoryBudget(0, share_bytes=2**21))
    assert put() == 200
    assert not waited
