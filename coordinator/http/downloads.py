"""Serve stored bytes as they are: whole, a range of them (RFC 9110, section 14), or "you have them".

Refuses to know what they are and who may have them.
"""

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
from coordinator.errors import RangeUnsatisfiable, Refused, ReplyEnded
from coordinator.storage import payloads
from schemas.wire.digests import to_field

_PROMPT_SECONDS = 0.1
_PROMPT_BYTES = 4 * 2**20
"""Who takes so much without a pause gets a whole row at a time, which costs least. Less says nothing of a
reader: buffers on the way take it for him."""

_ASKED_AGAIN_SECONDS = 5.0
"""How long a download goes on before it is asked again whether its caller may still have it."""

_SINGLE = re.compile(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})\s*")


Still = Callable[[Session], None]
"""Refuses when its caller may no longer have what is being sent."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes in the database, and what is said about them: `head`, then the payload from `begin` on."""

    payload_id: int
    digest: str
    size: int
    media_type: str
    encoding: str | None = None
    head: bytes = b""
    begin: int = 0

    @property
    def etag(self) -> str:
        """The entity tag: equal bytes, equal tag."""
        return f'"{self.digest}"'


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for: bytes from `begin` up to `end`, with this status."""

    status: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes will be sent."""
        return self.end - self.begin


def wanted(headers: Headers, stored: Stored) -> Wanted:
    """Read what a request asks for.

    Raises:
        RangeUnsatisfiable: a range none of whose bytes exist.
    """
    if _names(headers.get("if-none-match"), stored.etag):
        return Wanted(304, 0, 0)
    if headers.get("if-range", stored.etag) == stored.etag:
        part = _range(headers.get("range"), stored.size)
        if part is not None:
            return Wanted(206, *part)
    return Wanted(200, 0, stored.size)


def reply(database: Database, stored: Stored, part: Wanted, still: Still) -> Response:
    """Make the answer; the bytes are read while they are sent, and end where `still` refuses."""
    headers = {
        "ETag": stored.etag,
        "Repr-Digest": to_field(stored.digest),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
    }
    if part.status == 304:
        return Response(status_code=304, headers=headers)
    if stored.encoding is not None:
        headers["Content-Encoding"] = stored.encoding
    if part.status == 206:
        headers["Content-Range"] = f"bytes {part.begin}-{part.end - 1}/{stored.size}"
    headers["Content-Length"] = str(part.size)
    content = _content(database, stored, part, still)
    return StreamingResponse(content, part.status, headers, stored.media_type)


async def stream(
    database: Database, payload_id: int, begin: int, end: int, still: Still
) -> AsyncIterator[bytes]:
    """Give the bytes of a payload from `begin` up to `end`; only asking the database changes threads.

    Raises:
        ReplyEnded: `still` refused while they were under way.
    """
    at, prompt, asked = begin, 0, time.monotonic()
    while at < end:
        size = CHUNK_BYTES if prompt >= _PROMPT_BYTES else payloads.SENT_BYTES
        upto = min(end, at + size, at - at % CHUNK_BYTES + CHUNK_BYTES)  # of one row
        piece = await to_thread.run_sync(payloads.read_alone, database, payload_id, at, upto)
        offered = time.monotonic()
        if offered - asked >= _ASKED_AGAIN_SECONDS:
            await to_thread.run_sync(_ask, database, still)
            asked = offered = time.monotonic()
        yield piece  # comes back when the peer has taken nearly all of it
        is_prompt = time.monotonic() - offered < _PROMPT_SECONDS
        prompt = prompt + upto - at if is_prompt else 0
        at = upto


async def _content(database: Database, stored: Stored, part: Wanted, still: Still) -> AsyncIterator[bytes]:
    if part.begin < len(stored.head):
        yield stored.head[part.begin : part.end]
    shift = stored.begin - len(stored.head)
    begin = max(part.begin, len(stored.head)) + shift
    async for piece in stream(database, stored.payload_id, begin, part.end + shift, still):
        yield piece


def _ask(database: Database, still: Still) -> None:
    try:
        with database.read() as session:
            still(session)
    except Refused as refused:
        raise ReplyEnded(refused.slug) from refused


def _range(field: str | None, size: int) -> tuple[int, int] | None:
    """Read a Range field; None for everything, as for anything but one range of bytes."""
    found = _SINGLE.fullmatch(field) if field is not None else None
    if found is None or found.group(1) == found.group(2) == "":
        return None
    first, last = found.groups()
    if not first:  # the last so many bytes
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < begin:
            return None
    if begin >= end:
        raise RangeUnsatisfiable(size=size)
    return begin, end


def _names(field: str | None, etag: str) -> bool:
    """Say whether an If-None-Match field names this entity tag."""
    if field is None:
        return False
    tags = [one.strip().removeprefix("W/") for one in field.split(",")]
    return "*" in tags or etag in tags
