"""Receive a large body: streamed to memory or a file, hashed on the way, stopped at the limit.

Bodies that are small stay in memory while there is room for all of them together; the others lie in files.
Knows nothing of what is inside. A route takes it through a dependency that stands behind the caller: nobody
unknown is read from, and no transaction is open meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from threading import Lock
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
from coordinator.observability.logs import logger
from schemas.wire.digests import digest_from_hash, from_field

_IN_MEMORY_BYTES = 2 * 2**20
_ALL_IN_MEMORY_BYTES = 64 * 2**20
# While there is room for its batches, a large body is hashed and written by other threads than the one that
# receives everybody's; to change threads costs as much as to hash 64 KiB.
_AT_ONCE_BYTES = 2**18
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """Bytes as they came: `file` stands at its beginning, `encoding` says what to undo."""

    file: SpooledTemporaryFile[bytes]
    digest: str
    bytes: int
    encoding: Literal["zstd"] | None


class _Room:
    """What bodies may take of this process's memory together."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = Lock()

    @contextmanager
    def share(self) -> Iterator[_Share]:
        """Give a body its share; what it took is free again afterwards."""
        share = _Share(self)
        try:
            yield share
        finally:
            share.give_back()

    def take(self, size: int) -> bool:
        """Take some of what is left, or nothing if that is less."""
        with self._lock:
            enough = size <= self._left
            self._left -= size if enough else 0
        return enough


@dataclass(slots=True)
class _Share:
    room: _Room
    taken: int = 0

    def take(self, size: int) -> bool:
        """Say whether a body may have so much more."""
        enough = self.taken + size <= _IN_MEMORY_BYTES and self.room.take(size)
        self.taken += size if enough else 0
        return enough

    def give_back(self) -> None:
        """Free what was taken."""
        self.room.take(-self.taken)
        self.taken = 0


_ROOM = _Room(_ALL_IN_MEMORY_BYTES)


@asynccontextmanager
async def receive(
    request: Request, *, max_bytes: int, media_types: Collection[str]
) -> AsyncIterator[ReceivedBody]:
    """Receive a body and check it against its Content-Digest; the file is gone afterwards.

    Raises:
        Refused: the subclass says why; what was received so far is forgotten.
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
    is_small = announced is None or int(announced) <= _IN_MEMORY_BYTES
    with _ROOM.share() as share, SpooledTemporaryFile[bytes]() as file:
        digest, size = await _spool(request, file, share, max_bytes, in_memory=is_small)
        if digest != expected:
            raise DigestMismatch(received=digest)
        file.seek(0)
        yield ReceivedBody(file, digest, size, encoding)


async def _spool(
    request: Request,
    file: SpooledTemporaryFile[bytes],
    share: _Share,
    max_bytes: int,
    *,
    in_memory: bool,
) -> tuple[str, int]:
    """Receive into memory while `share` has room, if it may stay there, and else into the file proper."""
    seen = hashlib.sha256()
    size = 0
    batch = bytearray()  # as a list, pieces of a few bytes would take twenty times as much
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                raise BodyOverran(limit=max_bytes)
            has_room = share.take(len(piece))
            if in_memory and has_room:
                seen.update(piece)
                file.write(piece)
                continue
            if in_memory:
                in_memory = False
                file.rollover()
                share.give_back()
            batch += piece
            if not has_room:  # what waits for a thread takes memory, and lets more come in
                _write(file, seen, batch)
            elif len(batch) >= _AT_ONCE_BYTES:
                await to_thread.run_sync(_write, file, seen, batch)
            else:
                continue
            batch = bytearray()
            share.give_back()
    except ClientDisconnect as error:
        log.info("body-incomplete", received=size)
        raise BodyIncomplete from error
    if batch:
        await to_thread.run_sync(_write, file, seen, batch)
        share.give_back()
    return digest_from_hash(seen.hexdigest()), size


def _write(file: SpooledTemporaryFile[bytes], seen: hashlib._Hash, content: bytearray) -> None:
    file.rollover()
    seen.update(content)
    file.write(content)


def _encoding(value: str | None) -> Literal["zstd"] | None:
    match (value or "identity").strip().lower():
        case "identity":
            return None
        case "zstd":
            return "zstd"
        case _:
            raise ContentEncodingRefused(accepts=["zstd", "identity"])
