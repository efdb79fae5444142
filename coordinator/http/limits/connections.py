"""Limit connections, which uvicorn leaves unbounded: their number, the size and duration of a request's
head, and the pace at which responses are read. The last connections are reserved for health probes and
people.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from http import HTTPStatus
from typing import Any, ClassVar

from coordinator.errors import Busy, HeadTooLarge, Refusal, RequestMalformed, RequestTimeout, TargetTooLong
from coordinator.http.limits.body_deadline import (
    ANSWER_BYTES_PER_SECOND,
    HEAD_SECONDS,
    IDLE_SECONDS,
    REFUSED_BODY,
    body_seconds,
)
from coordinator.http.limits.one_request import OneRequestConnection
from coordinator.http.problems import render
from coordinator.observability.logs import logger

HEAD_LIMIT = 16 * 1024
"""Bytes of a request's target and header fields, trailer fields included."""

TARGET_LIMIT = 2048
"""Bytes of a request's target: several times as many as any route needs."""

FIELDS_LIMIT = 100
"""Header fields of a request, trailer fields included: every look-up scans all of them."""

RESERVED = 8
"""Largest number of connections reserved for health probes and people; at most a tenth of all."""

IS_RESERVED = "is_reserved"
"""Key in a request's state: whether its connection is reserved."""

PEER = "peer"
"""Key in a request's state: the peer address of its connection."""

_RESERVED_HEAD_SECONDS = 2.0

_LINGER_SECONDS = 1.0
_CHECK_SECONDS = 1.0
_UNSENT_BYTES = 2**17
_FIELD_OVERHEAD = 4  # the colon, the space and the line's end

log = logger(__name__)


def connections(bytes_per_second: int, most: int) -> type[BoundedConnection]:
    """Return the connection class for uvicorn with these limits."""
    limits = {"bytes_per_second": bytes_per_second, "most": most, "turns": deque()}
    return type("Connection", (BoundedConnection,), limits)


def reserved(most: int) -> int:
    """Return the number of reserved connections."""
    return min(RESERVED, most // 10)


class BoundedConnection(OneRequestConnection):
    """One of at most `most` connections; `bytes_per_second` is the slowest pace of an unread body."""

    bytes_per_second: ClassVar[int]
    most: ClassVar[int]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = self._target_bytes = self._fields = 0
        self._is_reserved = False
        self._unread_bytes = 0  # since the parser's last event
        self._in_head = False
        self._is_refused = False
        self._reader: asyncio.TimerHandle | None = None
        self._unread_response = 0  # unread response bytes at the last check
        self._read_response = 0  # response bytes read while sending was paused
        self._waited = self._stalled = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection_socket = transport.get_extra_info("socket")
        if connection_socket is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Otherwise the kernel buffers megabytes, and a slow but steady reader seems to stall.
            connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        # The last connections are reserved; `auth.reserved_connections` checks their callers.
        self._is_reserved = len(self.connections) > self.most - reserved(self.most)
        self._set_deadline(_RESERVED_HEAD_SECONDS if self._is_reserved else HEAD_SECONDS)
        if len(self.connections) > self.most:
            self._refuse(Busy())

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._unwatch_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_refused and not self.transport.is_closing():
            super().data_received(data)

    def feed(self, data: bytes) -> None:
        """Parse bytes of one request; after a response, the next request has a deadline."""
        if self._is_refused:
            return
        # A deadline runs already while a head arrives; it must not be extended by each byte.
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._set_deadline(self._rest_seconds())
        self._unread_bytes += len(data)
        super().feed(data)
        if self._unread_bytes > HEAD_LIMIT and not self._is_refused:
            self._refuse(HeadTooLarge(limit=HEAD_LIMIT))

    def on_too_many_held(self) -> None:
        """Refuse the connection that sends requests without awaiting their responses."""
        self._refuse(Busy())

    def on_too_many_parts(self) -> None:
        """Refuse a chunked body that costs more to divide than to read."""
        self._refuse(RequestMalformed("a chunked body repeats the end of a body; send another coding"))

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._unread_bytes = True, 0, 0
        self._target_bytes = self._fields = 0
        super().on_message_begin()
        self.scope["state"].update({IS_RESERVED: self._is_reserved, PEER: self.client and self.client[0]})

    def on_url(self, url: bytes) -> None:
        """Count the target, which must be a path: the parser drops a host or a fragment."""
        is_path = self._target_bytes > 0 or url.startswith(b"/")
        self._target_bytes += len(url)
        if self._target_bytes > TARGET_LIMIT:
            raise OverflowError
        if not is_path or b"#" in url:
            raise ValueError  # the parser stops, and uvicorn calls send_400_response
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field; drop trailer fields, which the checks of the header have not seen."""
        self._fields += 1
        self._count(len(name) + len(value) + _FIELD_OVERHEAD)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the head's deadline: the application limits the body."""
        self._in_head, self._unread_bytes = False, 0
        self._clear_deadline()
        super().on_headers_complete()
        # A reserved connection serves one request, so that the reserve is free again.
        if self._is_reserved:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Restart the idle deadline if the response was sent before the request was complete."""
        self._unread_bytes = 0
        if self.cycle.response_complete:
            self._set_deadline(float(self.timeout_keep_alive))
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed or is too large."""
        if self._target_bytes > TARGET_LIMIT:
            self._refuse(TargetTooLong(limit=TARGET_LIMIT))
        elif self._head_bytes > HEAD_LIMIT or self._fields > FIELDS_LIMIT:
            self._refuse(HeadTooLarge(limit=HEAD_LIMIT, fields=FIELDS_LIMIT))
        else:
            self._refuse(RequestMalformed())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._unwatch_reader()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Start the next request; keep watching the reader if the connection is closing."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif not self.flow.write_paused:
            self._read_response, self._waited, self._stalled = 0, 0.0, 0.0

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; watch the reader, or an unread response would keep it open."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def _watch_reader(self) -> None:
        if self._reader is None:
            self._unread_response = self.transport.get_write_buffer_size()
            self._reader = self.loop.call_later(_CHECK_SECONDS, self._check_reader)

    def _unwatch_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
            self._read_response += max(0, self._unread_response - self.transport.get_write_buffer_size())
            self._stalled = 0.0

    def _check_reader(self) -> None:
        self._reader = None
        remaining = self.transport.get_write_buffer_size()
        read = self._unread_response - remaining
        self._read_response += read
        self._waited += _CHECK_SECONDS
        self._stalled = 0.0 if read else self._stalled + _CHECK_SECONDS
        is_slow = self._waited > body_seconds(self._read_response, ANSWER_BYTES_PER_SECOND)
        if is_slow or self._stalled >= IDLE_SECONDS:
            log.info("slow-reader-cut-off", seconds=self._waited, taken=self._read_response)
            # Without a reset, the kernel would keep unread bytes and retry for minutes.
            connection_socket = self.transport.get_extra_info("socket")
            connection_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        elif remaining:
            self._watch_reader()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        self._unread_bytes = 0
        if self._head_bytes > HEAD_LIMIT or self._fields > FIELDS_LIMIT:
            raise OverflowError  # the parser stops, and uvicorn calls send_400_response

    def _rest_seconds(self) -> float:
        """Return the seconds until the next head must be complete, the rest of this body included."""
        if self.cycle is None or not self.cycle.more_body:
            return HEAD_SECONDS
        fields = dict(self.cycle.scope["headers"])
        announced = int(fields.get(b"content-length", b"0"))
        return body_seconds(min(announced, REFUSED_BODY), self.bytes_per_second)

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._in_head and not self._is_refused:
            self._refuse(RequestTimeout())
        else:
            self.transport.close()
            self._watch_reader()

    def _refuse(self, refused: Refusal) -> None:
        """Send a problem document, unless a response has started, and close the connection."""
        log.info("request-refused", reason=refused.slug)
        self._is_refused = True
        self.discard_held()
        self.flow.resume_reading()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # nothing more from the application is sent
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                self._watch_reader()
                return
        answer = render(refused)
        status = HTTPStatus(refused.status)
        fields = [*self.server_state.default_headers, *answer.raw_headers]
        lines = [b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode())]
        lines += [b"%s: %s" % field for field in fields if field[0] != b"connection"]
        self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", bytes(answer.body)]))
        # Closing with unread bytes would reset the connection and lose the response.
        self.transport.write_eof()
        self._set_deadline(_LINGER_SECONDS)
