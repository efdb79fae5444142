"""Bound what uvicorn leaves unbounded: how long and how large the head of a request may be.

Between two requests a connection may idle as long as uvicorn's keep-alive says; what must come to an end is
a head that began, and the rest of a body whose request is answered. A refusal here is a problem document too.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.errors import HeadTooLarge, Refused, RequestMalformed, RequestTimeout
from coordinator.limits.pace import HEAD_SECONDS, IDLE_SECONDS, body_seconds
from coordinator.logs import logger
from coordinator.problems import render

HEAD_LIMIT = 16 * 1024
"""Bytes of a request's target and header fields, trailer fields included."""

_LINGER_SECONDS = 1.0
_FIELD_OVERHEAD = 4  # the colon, the space and the line's end

log = logger(__name__)


def connections(bytes_per_second: int) -> type[BoundedConnection]:
    """Make the class of uvicorn's connections."""
    return type("Connection", (BoundedConnection,), {"bytes_per_second": bytes_per_second})


class BoundedConnection(HttpToolsProtocol):
    """One connection; `bytes_per_second` is the pace of what is still sent after the answer."""

    bytes_per_second: ClassVar[int]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clock: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._unread_bytes = 0  # since the parser last understood something
        self._in_head = False
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_within(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clock."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; after an answer, whatever comes has a deadline."""
        if self._is_refused or self.transport.is_closing():
            return
        if self._clock is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_within(self._rest_seconds())
        self._unread_bytes += len(data)
        super().data_received(data)
        if self._unread_bytes > HEAD_LIMIT and not self._is_refused:
            self._refuse(HeadTooLarge(limit=HEAD_LIMIT))

    def on_message_begin(self) -> None:
        """Start to count."""
        self._in_head, self._head_bytes, self._unread_bytes = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field."""
        self._count(len(name) + len(value) + _FIELD_OVERHEAD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the application take over: it bounds the body."""
        self._in_head, self._unread_bytes = False, 0
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Go back to idling, if the answer left before the request had come in full."""
        self._unread_bytes = 0
        if self.cycle.response_complete:
            self._expect_within(float(self.timeout_keep_alive))
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, or was too large to go on parsing."""
        too_large = self._head_bytes > HEAD_LIMIT
        self._refuse(HeadTooLarge(limit=HEAD_LIMIT) if too_large else RequestMalformed())

    def _count(self, size: int) -> None:
        self._head_bytes += size
        self._unread_bytes = 0
        if self._head_bytes > HEAD_LIMIT:
            raise OverflowError  # the parser stops, and uvicorn calls send_400_response

    def _rest_seconds(self) -> float:
        """Say how long it may take until the next head has come, the rest of this body included."""
        if self.cycle is None or not self.cycle.more_body:
            return HEAD_SECONDS
        fields = dict(self.cycle.scope["headers"])
        announced = int(fields.get(b"content-length", b"0"))
        return max(IDLE_SECONDS, body_seconds(announced, self.bytes_per_second))

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._clock = self.loop.call_later(seconds, self._give_up)

    def _expect_nothing(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        self._clock = None
        if self._in_head and not self._is_refused:
            self._refuse(RequestTimeout())
        else:
            self.transport.close()

    def _refuse(self, refused: Refused) -> None:
        """Answer, unless another answer is on its way, and close."""
        log.info("request-refused", reason=refused.slug)
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whatever the application says now is not sent
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        answer = render(refused)
        status = HTTPStatus(refused.status)
        fields = [*self.server_state.default_headers, *answer.raw_headers]
        lines = [b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode())]
        lines += [b"%s: %s" % field for field in fields if field[0] != b"connection"]
        self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", bytes(answer.body)]))
        # Closed at once, with bytes unread, the connection would be reset and the answer lost.
        self.transport.write_eof()
        self._expect_within(_LINGER_SECONDS)
