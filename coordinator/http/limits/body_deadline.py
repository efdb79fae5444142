"""Limit the time of request bodies: a slow upload ends with 408. Only time spent waiting for the peer
counts, and only until the body is complete.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import RequestTimeout

HEAD_SECONDS = 10.0
"""Time for a request's line and header fields, from their first byte or the connection."""

IDLE_SECONDS = 10.0
"""Longest pause of a body."""

GRACE_SECONDS = 30.0
"""Time allowed for a body of any size."""

ANSWER_BYTES_PER_SECOND = 50_000
"""Slowest average pace of a response; slower clients download it in several requests."""

REFUSED_BODY = 2**28
"""Largest rest of a body that is awaited after its request was answered."""


def body_seconds(size: int, bytes_per_second: int) -> float:
    """Return the seconds that a body of `size` bytes may take."""
    return GRACE_SECONDS + size / bytes_per_second


class BodyDeadline:
    """ASGI middleware that limits the time of request bodies."""

    def __init__(self, app: ASGIApp, bytes_per_second: int) -> None:
        self._app = app
        self._bytes_per_second = bytes_per_second

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            announced = Headers(scope=scope).get("content-length", "0")
            receive = _PacedReceive(receive, int(announced), self._bytes_per_second)
        await self._app(scope, receive, send)


@dataclass(slots=True)
class _PacedReceive:
    receive: Receive
    announced: int
    bytes_per_second: int
    waited: float = 0.0
    received: int = 0
    is_whole: bool = False

    async def __call__(self) -> Message:
        """Receive the next message.

        Raises:
            RequestTimeout: this piece or the body took too long.
        """
        if self.is_whole:
            return await self.receive()
        # A body of unknown length gets time for the bytes received so far.
        allowed = body_seconds(max(self.announced, self.received), self.bytes_per_second)
        if self.waited >= allowed:
            raise RequestTimeout(received=self.received)
        began = time.monotonic()
        try:
            with anyio.fail_after(min(IDLE_SECONDS, allowed - self.waited)):
                message = await self.receive()
        except TimeoutError:
            raise RequestTimeout(received=self.received) from None
        # Only waiting for the peer counts, not the work of the route between two pieces.
        self.waited += time.monotonic() - began
        self.received += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        return message
