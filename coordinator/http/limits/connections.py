"""Bound what uvicorn leaves unbounded: how many connections there are, how long and how large the head of a
request may be, how slowly an answer is taken.

The last few connections are reserved: they answer one request each, of health probes and of people, so that
neither goes unheard when others hold all the rest.

Between two requests a connection may idle as long as uvicorn's keep-alive says; what must come to an end is
a head that began, and the rest of a body whose request is answered. A refusal here is a problem document too.

Who takes an answer slowly holds a piece of it in memory, and neither a thread nor a transaction. Who takes
nothing for a while, or all of it below the pace, is cut off; a download can go on where it broke off.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.errors import Busy, HeadTooLarge, Refused, RequestMalformed, RequestTimeout, TargetTooLong
from coordinator.http.limits.body_deadline import (
    ANSWER_BYTES_PER_SECOND,
    HEAD_SECONDS,
    IDLE_SECONDS,
    REFUSED_BODY,
    body_seconds,
)
from coordinator.http.problems import render
from coordinator.observability.logs import logger

HEAD_LIMIT = 16 * 1024
"""Bytes of a request's target and header fields, trailer fields included."""

TARGET_LIMIT = 2048
"""Bytes of a request's target: several times as much as any route has a use for."""

FIELDS_LIMIT = 100
"""Header fields of a request, trailer fields included: every look-up of a field passes over all of them."""

RESERVED = 8
"""The most connections that are reserved for health probes and people; a tenth where there are few in all."""

IS_RESERVED = "is_reserved"
"""Names the member of a request's state that says that its connection is reserved."""

PEER = "peer"
"""Names the member of a request's state that has the address at the other end of its connection."""

_RESERVED_HEAD_SECONDS = 2.0

_LINGER_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_UNSENT_BYTES = 2**17
_FIELD_OVERHEAD = 4  # the colon, the space and the line's end

log = logger(__name__)


def connections(bytes_per_second: int, most: int) -> type[BoundedConnection]:
    """Make the class of uvicorn's connections."""
    return type("Connection", (BoundedConnection,), {"bytes_per_second": bytes_per_second, "most": most})


def reserved(most: int) -> int:
    """Return how many connections of `most` are reserved for health probes and people."""
    return min(RESERVED, most // 10)


class BoundedConnection(HttpToolsProtocol):
    """One connection of at most `most`; `bytes_per_second` is the pace of what comes after the answer."""

    bytes_per_second: ClassVar[int]
    most: ClassVar[int]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clock: asyncio.TimerHandle | None = None
        self._head_bytes = self._target_bytes = self._fields = 0
        self._is_reserved = False
        self._unread_bytes = 0  # since the parser last understood something
        self._in_head = False
        self._is_refused = False
        self._reader: asyncio.TimerHandle | None = None
        self._untaken = 0  # bytes of answers that wait for the peer, as of the last look
        self._taken = 0  # and those that it took while we waited for it
        self._waited = self._stalled = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        line = transport.get_extra_info("socket")
        if line is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Else the kernel takes megabytes at once, and a slow but steady reader seems to stand still.
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._is_reserved = len(self.connections) > self.most - reserved(self.most)
        self._expect_within(_RESERVED_HEAD_SECONDS if self._is_reserved else HEAD_SECONDS)
        if len(self.connections) > self.most:
            self._refuse(Busy())

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clocks."""
        self._expect_nothing()
        self._leave_the_reader()
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
        self._target_bytes = self._fields = 0
        super().on_message_begin()
        self.scope["state"].update({IS_RESERVED: self._is_reserved, PEER: self.client and self.client[0]})

    def on_url(self, url: bytes) -> None:
        """Count the target. It is a path: the parser drops the host of another form, and a fragment."""
        is_path = self._target_bytes > 0 or url.startswith(b"/")
        self._target_bytes += len(url)
        if self._target_bytes > TARGET_LIMIT:
            raise OverflowError
        if not is_path or b"#" in url:
            raise ValueError  # as an overflow: the parser stops, and uvicorn calls send_400_response
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field. Behind a body it is left out: what checked the header fields has not seen it."""
        self._fields += 1
        self._count(len(name) + len(value) + _FIELD_OVERHEAD)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the application take over: it bounds the body."""
        self._in_head, self._unread_bytes = False, 0
        self._expect_nothing()
        super().on_headers_complete()
        if self._is_reserved:
            self.cycle.keep_alive = False

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
        if self._target_bytes > TARGET_LIMIT:
            self._refuse(TargetTooLong(limit=TARGET_LIMIT))
        elif self._head_bytes > HEAD_LIMIT or self._fields > FIELDS_LIMIT:
            self._refuse(HeadTooLarge(limit=HEAD_LIMIT, fields=FIELDS_LIMIT))
        else:
            self._refuse(RequestMalformed())

    def pause_writing(self) -> None:
        """Begin to look how the peer takes what waits for it."""
        super().pause_writing()
        self._watch_the_reader()

    def resume_writing(self) -> None:
        """Go on sending: it took nearly all of it."""
        self._leave_the_reader()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Go on to the next request; what waits behind the last answer of a connection is looked at, too."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_the_reader()
        elif not self.flow.write_paused:
            self._taken, self._waited, self._stalled = 0, 0.0, 0.0

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that idles: with an answer that was not taken it would stay."""
        super().timeout_keep_alive_handler()
        self._watch_the_reader()

    def _watch_the_reader(self) -> None:
        if self._reader is None:
            self._untaken = self.transport.get_write_buffer_size()
            self._reader = self.loop.call_later(_LOOK_SECONDS, self._look_at_the_reader)

    def _leave_the_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
            self._taken += max(0, self._untaken - self.transport.get_write_buffer_size())
            self._stalled = 0.0

    def _look_at_the_reader(self) -> None:
        self._reader = None
        left = self.transport.get_write_buffer_size()
        took = self._untaken - left
        self._taken += took
        self._waited += _LOOK_SECONDS
        self._stalled = 0.0 if took else self._stalled + _LOOK_SECONDS
        is_slow = self._waited > body_seconds(self._taken, ANSWER_BYTES_PER_SECOND)
        if is_slow or self._stalled >= IDLE_SECONDS:
            log.info("slow-reader-cut-off", seconds=self._waited, taken=self._taken)
            # Closed without a reset, the kernel would keep what was not taken, and try for minutes.
            line = self.transport.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        elif left:
            self._watch_the_reader()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        self._unread_bytes = 0
        if self._head_bytes > HEAD_LIMIT or self._fields > FIELDS_LIMIT:
            raise OverflowError  # the parser stops, and uvicorn calls send_400_response

    def _rest_seconds(self) -> float:
        """Say how long it may take until the next head has come, the rest of this body included."""
        if self.cycle is None or not self.cycle.more_body:
            return HEAD_SECONDS
        fields = dict(self.cycle.scope["headers"])
        announced = int(fields.get(b"content-length", b"0"))
        return body_seconds(min(announced, REFUSED_BODY), self.bytes_per_second)

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
            self._watch_the_reader()

    def _refuse(self, refused: Refused) -> None:
        """Answer, unless another answer is on its way, and close."""
        log.info("request-refused", reason=refused.slug)
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whatever the application says now is not sent
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                self._watch_the_reader()
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
