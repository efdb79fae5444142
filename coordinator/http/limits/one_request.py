"""Parse one request of a connection at a time: uvicorn queues an object for each parsed request of a
pipeline, and resumes reading although its queue is not empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HELD_BYTES = 2**24
"""Bytes of later requests that all connections of a process may hold together."""

_END = b"\r\n\r\n"  # of each head, and of each chunked body
# Parts of a chunked body that end as bodies do. Each is parsed by itself; in random data one is in 4 GiB.
_MOST_PARTS = 1024


class _Flow(FlowControl):
    """Flow control that does not resume reading while bytes of later requests are held."""

    is_holding = False

    def resume_reading(self) -> None:
        if not self.is_holding:
            super().resume_reading()


class OneRequestConnection(HttpToolsProtocol):
    """A connection whose next request is parsed after the response to the previous one is complete.

    Until then its bytes are held as received, at most one read of the transport, and reading is paused.
    """

    turns: ClassVar[deque[OneRequestConnection]]
    """Connections of a server that hold their next request, in the order of their last responses."""

    flow: _Flow

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held = b""
        self._position = 0  # of the first byte of `_held` that was not parsed
        self._is_amid_request = False
        self._body_left: int | None = None  # bytes; None in a head and in a chunked body
        self._tail = b""  # the last bytes parsed, which may be a part of `_END`
        self._parts = 0  # of this request that ended with `_END`

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.discard_held()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes up to the end of a request, and hold those behind it."""
        if self._held:
            data = self._held[self._position :] + data
        self._held, self._position = data, 0
        self._parse_held()
        if self._held:
            connections: Any = self.connections
            if sum(connection.held_bytes for connection in connections) > HELD_BYTES:
                self.on_too_many_held()

    def feed(self, data: bytes) -> None:
        """Parse bytes of one request."""
        super().data_received(data)

    def on_too_many_held(self) -> None:
        """Close the connection: all connections together hold too many bytes."""
        self.transport.close()

    def on_too_many_parts(self) -> None:
        """Close the connection: its chunked body is made of ends of bodies."""
        self.transport.close()

    def discard_held(self) -> None:
        """Drop the bytes of later requests, and read on."""
        self._held, self._position = b"", 0
        if self.flow is not None:
            self.flow.is_holding = False

    def on_message_begin(self) -> None:
        if self._is_answering():
            raise ValueError  # the parser stops, and uvicorn calls send_400_response
        self._is_amid_request, self._parts = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        fields = dict(self.headers)
        self._body_left = None if b"transfer-encoding" in fields else int(fields.get(b"content-length", b"0"))
        if self.parser.should_upgrade():
            # The parser takes the body for the next request.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if self._body_left is not None:
            self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_amid_request, self._body_left = False, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Queue for the next request, if its bytes are held: the event loop starts one in each iteration.

        Otherwise all connections with held requests would be ahead of any other caller.
        """
        super().on_response_complete()
        if self._held:
            self.turns.append(self)
            if len(self.turns) == 1:
                self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        connection = self.turns.popleft()
        if self.turns:
            self.loop.call_soon(self._take_turn)
        connection._parse_held()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _parse_held(self) -> None:
        while self._position < len(self._held) and (self._is_amid_request or not self._is_answering()):
            if self.transport.is_closing():
                break
            begin = self._position
            self._position = end = self._part_end(begin)
            self.feed(self._held[begin:end])
            if self._parts > _MOST_PARTS:
                self.on_too_many_parts()
        was_holding = self.flow.is_holding
        if self._position >= len(self._held) or self.transport.is_closing():
            self.discard_held()
            if was_holding and not (self._is_answering() and len(self.cycle.body) > HIGH_WATER_LIMIT):
                self.flow.resume_reading()
        else:
            self.flow.is_holding = True
            self.flow.pause_reading()

    def _part_end(self, begin: int) -> int:
        """Return the end of the bytes from `begin` on that belong to one head or body."""
        if self._is_amid_request and self._body_left is not None:
            return min(len(self._held), begin + max(1, self._body_left))
        tail, self._tail = self._tail, b""
        # The end may lie across two reads.
        end_in_tail = (tail + self._held[begin : begin + len(_END) - 1]).find(_END)
        if end_in_tail >= 0:
            self._parts += 1
            return begin + end_in_tail + len(_END) - len(tail)
        end = self._held.find(_END, begin)
        if end >= 0:
            self._parts += 1
            return end + len(_END)
        self._tail = (tail + self._held[begin:])[1 - len(_END) :]
        return len(self._held)
