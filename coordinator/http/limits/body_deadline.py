"""Give every request body a deadline: trickling uploads end with 408 and the connection.

Only the time spent waiting for the peer counts, so that a busy server cuts nobody off. A body that has
arrived has no deadline any more: who waits for a round, or follows events, is left alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import RequestTimeout

HEAD_SECONDS = 10.0
"""A request's line and header fields arrive within this time of their first byte, or of the connection."""

IDLE_SECONDS = 10.0
"""A body never pauses longer."""

GRACE_SECONDS = 30.0
"""What a body may take whatever its size."""

ANSWER_BYTES_PER_SECOND = 50_000
"""The pace at which an answer is taken on the whole: slower lines get it in several requests."""

REFUSED_BODY = 2**28
"""As much of a body is waited for whose request was answered before it had come, whatever it announces."""


def body_seconds(size: int, bytes_per_second: int) -> float:
    """Say how long a body of `size` bytes may take to arrive."""
    return GRACE_SECONDS + size / bytes_per_second


class PacedBodies:
    """A layer around the routes: what they receive from comes at a reasonable pace, or not at all."""

    def __init__(self, app: ASGIApp, bytes_per_second: int) -> None:
        self._app = app
        self._bytes_per_second = bytes_per_second

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with a receiver that has a deadline."""
        if scope["type"] == "http":
            announced = Headers(scope=scope).get("content-length", "0")
            receive = _Paced(receive, int(announced), self._bytes_per_second)
        await self._app(scope, receive, send)


@dataclass(slots=True)
class _Paced:
    receive: Receive
    announced: int
    bytes_per_second: int
    waited: float = 0.0
    received: int = 0
    is_whole: bool = False

    async def __call__(self) -> Message:
        """Wait for the next piece.

        Raises:
            RequestTimeout: it took too long, or all of them did.
        """
        if self.is_whole:
            return await self.receive()
        # A body of unknown length earns its time as it comes.
        allowed = body_seconds(max(self.announced, self.received), self.bytes_per_second)
        if self.waited >= allowed:
            raise RequestTimeout(received=self.received)
        began = time.monotonic()
        try:
            with anyio.fail_after(min(IDLE_SECONDS, allowed - self.waited)):
                message = await self.receive()
        except TimeoutError:
            raise RequestTimeout(received=self.received) from None
        self.waited += time.monotonic() - began
        self.received += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        return message
