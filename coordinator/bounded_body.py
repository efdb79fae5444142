"""Receive a large body: streamed to a spooled file, hashed on the way, stopped at the limit.

Knows nothing of what is inside. A route takes it through a dependency that stands behind the caller and
before any session: nobody unknown is read from, and no transaction is open meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Literal

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
from coordinator.logs import logger
from schemas.wire.digests import digest_from_hash, from_field

_SPOOL_BYTES = 2**20
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """Bytes as they came: `file` stands at its beginning, `encoding` says what to undo."""

    file: SpooledTemporaryFile[bytes]
    digest: str
    bytes: int
    encoding: Literal["zstd"] | None


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
    with SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as file:
        digest, size = await _spool(request, file, max_bytes)
        if digest != expected:
            raise DigestMismatch(received=digest)
        file.seek(0)
        yield ReceivedBody(file, digest, size, encoding)


async def _spool(request: Request, file: SpooledTemporaryFile[bytes], max_bytes: int) -> tuple[str, int]:
    seen = hashlib.sha256()
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                raise BodyOverran(limit=max_bytes)
            seen.update(piece)
            file.write(piece)
    except ClientDisconnect as error:
        log.info("body-incomplete", received=size)
        raise BodyIncomplete from error
    return digest_from_hash(seen.hexdigest()), size


def _encoding(value: str | None) -> Literal["zstd"] | None:
    match (value or "identity").strip().lower():
        case "identity":
            return None
        case "zstd":
            return "zstd"
        case _:
            raise ContentEncodingRefused(accepts=["zstd", "identity"])
