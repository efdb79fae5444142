"""One deadline for a whole HTTP call: connect, request, response head and body.

The timeouts of httpx restart with every byte, so that a peer sending one byte a minute would block forever.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

import httpx

FLOOR_BYTES_PER_SECOND = 100_000
"""The minimum rate that extends the deadline of a large body."""

_NAME = "tessera_deadline"
_PIECE_BYTES = 65536
_DEADLINE_PASSED = "the deadline of the whole call has passed"


class Deadline:
    """The end of a call: `seconds` from now, plus the time of its body at the minimum rate."""

    def __init__(self, seconds: float, *, size: int = 0) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._size = size

    def extend_for(self, size: int) -> None:
        """Extend the deadline for a body of `size` bytes, or for the largest body so far."""
        self._size = max(self._size, size)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._began + self._seconds + self._size / FLOOR_BYTES_PER_SECOND - time.monotonic()

    @property
    def extensions(self) -> dict[str, Any]:
        """The httpx extensions that attach this deadline to a request of `DeadlineClient`."""
        return {_NAME: self}


class DeadlineClient(httpx.Client):
    """An httpx client that raises an httpx timeout once the deadline of a call has passed."""

    def __init__(self, on_request: Sequence[Callable[[httpx.Request], None]] = (), **options: Any) -> None:
        hooks: dict[str, list[Callable[..., Any]]] = {
            "request": [_limit_request, carry_trace, *on_request],
            "response": [_limit_answer],
        }
        super().__init__(**options, event_hooks=hooks)
        self._opened: list[socket.socket] = []

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request; shut down its connection at the deadline."""
        deadline: Deadline | None = request.extensions.get(_NAME)
        if deadline is None:
            return super().send(request, **options)
        request.extensions = {**request.extensions, "trace": self._track_socket}
        with self._cut_at_deadline(request, deadline):
            return super().send(request, **options)

    @contextmanager
    def _cut_at_deadline(self, request: httpx.Request, deadline: Deadline) -> Iterator[None]:
        is_over = threading.Event()

        def cut() -> None:
            is_over.set()
            for line in self._opened:
                with suppress(OSError):
                    # Shutdown wakes a thread that is blocked in a read; a close would not. The method of the
                    # plain socket, because that of a TLS socket drops the state which the reading thread
                    # uses.
                    socket.socket.shutdown(line, socket.SHUT_RDWR)

        timer = threading.Timer(max(0.0, deadline.remaining), cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (httpx.TransportError, OSError) as error:
            # A cut connection raises various errors; for the caller they all are the deadline.
            if is_over.is_set():
                raise httpx.ReadTimeout(_DEADLINE_PASSED, request=request) from error
            raise
        finally:
            timer.cancel()

    def _track_socket(self, event: str, info: Mapping[str, Any]) -> None:
        """Record the sockets that httpcore opens; a TLS socket replaces the plain one."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            opened = info["return_value"].get_extra_info("socket")
            self._opened = [
                open_socket for open_socket in (*self._opened, opened) if open_socket.fileno() >= 0
            ]


def extend_deadline(answer: httpx.Response) -> None:
    """Extend the deadline of an answer's call by the time of its body at the minimum rate."""
    deadline: Deadline | None = answer.request.extensions.get(_NAME)
    if deadline is not None:
        deadline.extend_for(int(answer.headers.get("Content-Length", "0")))


def _limit_request(request: httpx.Request) -> None:
    if _NAME in request.extensions:
        stream = cast("httpx.SyncByteStream", request.stream)
        request.stream = _LimitedStream(stream, request, httpx.WriteTimeout)


def _limit_answer(answer: httpx.Response) -> None:
    if _NAME in answer.request.extensions:
        received = cast("httpx.SyncByteStream", answer.stream)
        answer.stream = _LimitedStream(received, answer.request, httpx.ReadTimeout)


class _LimitedStream(httpx.SyncByteStream):
    def __init__(
        self, stream: httpx.SyncByteStream, request: httpx.Request, late: type[httpx.TimeoutException]
    ) -> None:
        self._stream = stream
        self._request = request
        self._late = late

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            # A body in memory is one piece: the deadline is checked while it is sent, too.
            for at in range(0, len(piece), _PIECE_BYTES):
                if self._request.extensions[_NAME].remaining < 0:
                    raise self._late(_DEADLINE_PASSED, request=self._request)
                yield piece[at : at + _PIECE_BYTES]

    def close(self) -> None:
        self._stream.close()


def carry_trace(request: httpx.Request) -> None:
    """Add `traceparent` to a request made within a span; signatures do not cover it."""
    if _is_installed():
        from opentelemetry.propagate import inject

        inject(request.headers)


@cache
def _is_installed() -> bool:
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.propagate") is not None
