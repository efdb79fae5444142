"""Receive a large body: streamed to memory or a file, hashed, and stopped at its limit. A route receives
it after authentication and without an open transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Literal

from anyio import to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from coordinator.errors import (
    BodyIncomplete,
    BodyOverran,
    BodyTooLarge,
    ContentEncodingRefused,
    DigestMismatch,
    DigestMissing,
    MediaTypeRefused,
)
from coordinator.http.limits.memory_budget import MemoryBudget, MemoryShare
from coordinator.observability.logs import logger
from schemas.wire.digests import digest_from_hash, from_field

_IN_MEMORY_BYTES = 2 * 2**20
_ALL_IN_MEMORY_BYTES = 64 * 2**20
# While memory is available, a large body is hashed and written in batches by other threads than the event
# loop's; switching threads costs as much as hashing 64 KiB.
_BATCH_BYTES = 2**18
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """Received bytes: `file` is positioned at its start, `encoding` is the content encoding."""

    file: SpooledTemporaryFile[bytes]
    digest: str
    bytes: int
    encoding: Literal["zstd"] | None


_MEMORY = MemoryBudget(_ALL_IN_MEMORY_BYTES, share_bytes=_IN_MEMORY_BYTES)


@asynccontextmanager
async def receive(
    request: Request, *, max_bytes: int, media_types: Collection[str]
) -> AsyncIterator[ReceivedBody]:
    """Receive a body and verify its Content-Digest; the file is deleted afterwards.

    Raises:
        Refusal: the subclass names the reason; the received bytes are discarded.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types:
        raise MediaTypeRefused(accepts=[*sorted(media_types)])
    encoding = _encoding(request.headers.get("content-encoding"))
    expected = from_field(",".join(request.headers.getlist("content-digest")))
    if expected is None:
        raise DigestMissing
    announced = request.headers.get("content-length")
    if announced is not None and int(announced) > max_bytes:
        raise BodyTooLarge(limit=max_bytes)
    # A body that is announced as large goes to a file at once, and leaves the memory to small ones.
    is_small = announced is None or int(announced) <= _IN_MEMORY_BYTES
    with _MEMORY.share() as share, SpooledTemporaryFile[bytes]() as file:
        digest, size = await _spool(request, file, share, max_bytes, in_memory=is_small)
        # Compared at the end: the digest of a stream is known only then.
        if digest != expected:
            raise DigestMismatch(received=digest)
        file.seek(0)
        yield ReceivedBody(file, digest, size, encoding)


async def _spool(
    request: Request,
    file: SpooledTemporaryFile[bytes],
    share: MemoryShare,
    max_bytes: int,
    *,
    in_memory: bool,
) -> tuple[str, int]:
    """Receive into memory while `share` allows it, and into a file otherwise."""
    hasher = hashlib.sha256()
    size = 0
    batch = bytearray()  # a list of small pieces would take twenty times as much memory
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                raise BodyOverran(limit=max_bytes)
            # Bodies without an announced length are small until their share is used up.
            has_room = share.reserve(len(piece))
            if in_memory and has_room:
                hasher.update(piece)
                file.write(piece)
                continue
            if in_memory:
                in_memory = False
                file.rollover()
                share.release()
            batch += piece
            if not has_room:  # waiting for a thread would use memory, and let more bytes in
                _write(file, hasher, batch)
            elif len(batch) >= _BATCH_BYTES:
                await to_thread.run_sync(_write, file, hasher, batch)
            else:
                continue
            batch = bytearray()
            share.release()
    except ClientDisconnect as error:
        log.info("body-incomplete", received=size)
        raise BodyIncomplete from error
    if batch:
        await to_thread.run_sync(_write, file, hasher, batch)
        share.release()
    return digest_from_hash(hasher.hexdigest()), size


def _write(file: SpooledTemporaryFile[bytes], hasher: hashlib._Hash, content: bytearray) -> None:
    file.rollover()
    hasher.update(content)
    file.write(content)


def _encoding(value: str | None) -> Literal["zstd"] | None:
    match (value or "identity").strip().lower():
        case "identity":
            return None
        case "zstd":
            return "zstd"
        case _:
            raise ContentEncodingRefused(accepts=["zstd", "identity"])
