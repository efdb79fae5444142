"""Serve stored bytes: in full, as a range (RFC 9110, section 14), or as not modified."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from anyio import to_thread
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.db.engine import Database
from coordinator.errors import RangeUnsatisfiable, Refusal, ReplyEnded
from coordinator.http.limits.memory_budget import MemoryBudget
from coordinator.storage import payloads
from schemas.wire.digests import to_field

_FAST_SECONDS = 0.1
# A reader that took this much without a pause gets whole rows, which is cheapest. Less proves nothing:
# buffers on the way may have taken it.
_FAST_BYTES = 4 * 2**20
# Some downloads get whole rows from their beginning, until they pause: each piece costs a change of threads
# and a query. Readers that stop hold no more than this together, and beside it one row each of those that
# `_FAST_BYTES` showed to be fast.
_WHOLE_ROWS = MemoryBudget(16 * 2**20, share_bytes=CHUNK_BYTES)

# Interval of a download at which the permission of its caller is checked again.
_RECHECK_SECONDS = 5.0

_SINGLE = re.compile(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})\s*")


Recheck = Callable[[Session], None]
"""Raises Refusal once the caller may no longer have the download."""


@dataclass(frozen=True, slots=True)
class StoredBody:
    """Bytes in the database and their metadata: `head`, then the payload from `begin` on."""

    payload_id: int
    digest: str
    size: int
    media_type: str
    encoding: str | None = None
    head: bytes = b""
    begin: int = 0

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """The requested bytes from `begin` up to `end`, and the status of the response."""

    status: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def requested_range(headers: Headers, stored: StoredBody) -> RequestedRange:
    """Return the bytes that a request asks for.

    Raises:
        RangeUnsatisfiable: no byte of the range exists.
    """
    if _matches(headers.get("if-none-match"), stored.etag):
        return RequestedRange(304, 0, 0)
    # A caller that has a part of other bytes gets the whole body: both parts would not fit together.
    if headers.get("if-range", stored.etag) == stored.etag:
        span = _range(headers.get("range"), stored.size)
        if span is not None:
            return RequestedRange(206, *span)
    return RequestedRange(200, 0, stored.size)


def reply(database: Database, stored: StoredBody, span: RequestedRange, recheck: Recheck) -> Response:
    """Build the response; its bytes are read while sending, which ends once `recheck` refuses."""
    headers = {
        "ETag": stored.etag,
        "Repr-Digest": to_field(stored.digest),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
    }
    if span.status == 304:
        return Response(status_code=304, headers=headers)
    if stored.encoding is not None:
        headers["Content-Encoding"] = stored.encoding
    if span.status == 206:
        headers["Content-Range"] = f"bytes {span.begin}-{span.end - 1}/{stored.size}"
    headers["Content-Length"] = str(span.size)
    content = _content(database, stored, span, recheck)
    return StreamingResponse(content, span.status, headers, stored.media_type)


async def stream(
    database: Database, payload_id: int, begin: int, end: int, recheck: Recheck
) -> AsyncIterator[bytes]:
    """Yield a payload from `begin` up to `end`; only database queries change threads.

    Raises:
        ReplyEnded: `recheck` refused during the download.
    """
    position, fast_bytes, checked = begin, 0, time.monotonic()
    with _WHOLE_ROWS.share() as share:
        share.reserve(CHUNK_BYTES)
        while position < end:
            gets_rows = share.reserved or fast_bytes >= _FAST_BYTES
            size = CHUNK_BYTES if gets_rows else payloads.SENT_BYTES
            row_end = position - position % CHUNK_BYTES + CHUNK_BYTES
            stop = min(end, position + size, row_end)
            piece = await to_thread.run_sync(payloads.read_alone, database, payload_id, position, stop)
            offered = time.monotonic()
            # A download may take minutes; a revoked caller must not get the rest of it.
            if offered - checked >= _RECHECK_SECONDS:
                await to_thread.run_sync(_check_permission, database, recheck)
                checked = offered = time.monotonic()
            yield piece  # resumes when the peer has taken nearly all of it
            is_fast = time.monotonic() - offered < _FAST_SECONDS
            fast_bytes = fast_bytes + stop - position if is_fast else 0
            if not is_fast:
                share.release()  # from now on the reader has to show that it is fast
            position = stop


async def _content(
    database: Database, stored: StoredBody, span: RequestedRange, recheck: Recheck
) -> AsyncIterator[bytes]:
    if span.begin < len(stored.head):
        yield stored.head[span.begin : span.end]
    # Positions in the body and in the payload differ by the length of the head.
    shift = stored.begin - len(stored.head)
    begin = max(span.begin, len(stored.head)) + shift
    async for piece in stream(database, stored.payload_id, begin, span.end + shift, recheck):
        yield piece


def _check_permission(database: Database, recheck: Recheck) -> None:
    try:
        with database.read() as session:
            recheck(session)
    except Refusal as refused:
        raise ReplyEnded(refused.slug) from refused


def _range(field: str | None, size: int) -> tuple[int, int] | None:
    """Parse a Range field; return None, for the full body, unless it is one range of bytes."""
    match = _SINGLE.fullmatch(field) if field is not None else None
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if not first:  # a suffix range
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < begin:
            return None
    if begin >= end:
        raise RangeUnsatisfiable(size=size)
    return begin, end


def _matches(field: str | None, etag: str) -> bool:
    """Whether an If-None-Match field contains this entity tag."""
    if field is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in field.split(",")]
    return "*" in tags or etag in tags
