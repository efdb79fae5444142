"""Give a call a deadline: connecting, what is sent, the answer's head and body, all end when it is over.

httpx's own timeouts begin anew with every byte that moves: a coordinator that takes or gives one a minute
would hold an agent for ever. Knows no path and no message.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx

FLOOR_BYTES_PER_SECOND = 100_000
"""The slowest line that a large body is waited for on."""

_NAME = "tessera_deadline"
_PIECE_BYTES = 65536
_OVER = "the time for the whole call is over"


class Deadline:
    """When a call must be over: `seconds` after now, and later for a body that takes longer at the floor."""

    def __init__(self, seconds: float, *, size: int = 0) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._size = size

    def carry(self, size: int) -> None:
        """Allow for a body of `size` bytes, whichever was the largest."""
        self._size = max(self._size, size)

    @property
    def left(self) -> float:
        """How much time there is, seconds."""
        return self._began + self._seconds + self._size / FLOOR_BYTES_PER_SECOND - time.monotonic()

    @property
    def extensions(self) -> dict[str, Any]:
        """What a request that is to end by then says to `DeadlineClient`."""
        return {_NAME: self}


class DeadlineClient(httpx.Client):
    """An httpx client that ends a call past its deadline as a timeout of httpx, whatever is awaited."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, event_hooks={"request": [_watch_request], "response": [_watch_answer]})
        self._opened: list[socket.socket] = []

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request, and cut its connection if what `send` waits for is not there in time."""
        deadline: Deadline | None = request.extensions.get(_NAME)
        if deadline is None:
            return super().send(request, **options)
        request.extensions = {**request.extensions, "trace": self._note}
        with self._cutting(request, deadline):
            return super().send(request, **options)

    @contextmanager
    def _cutting(self, request: httpx.Request, deadline: Deadline) -> Iterator[None]:
        is_over = threading.Event()

        def cut() -> None:
            is_over.set()
            for line in self._opened:
                with suppress(OSError):
                    socket.socket.shutdown(line, socket.SHUT_RDWR)

        timer = threading.Timer(max(0.0, deadline.left), cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (httpx.TransportError, OSError) as error:
            if is_over.is_set():
                raise httpx.ReadTimeout(_OVER, request=request) from error
            raise
        finally:
            timer.cancel()

    def _note(self, event: str, said: Mapping[str, Any]) -> None:
        """Remember the connections that httpcore opens: TLS takes the plain one's place."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            line = said["return_value"].get_extra_info("socket")
            self._opened = [one for one in (*self._opened, line) if one.fileno() >= 0]


def carry(answer: httpx.Response) -> None:
    """Allow the call that an answer is of the time that its body takes at the floor."""
    deadline: Deadline | None = answer.request.extensions.get(_NAME)
    if deadline is not None:
        deadline.carry(int(answer.headers.get("Content-Length", "0")))


def _watch_request(request: httpx.Request) -> None:
    if _NAME in request.extensions:
        sent = cast("httpx.SyncByteStream", request.stream)
        request.stream = _Watched(sent, request, httpx.WriteTimeout)


def _watch_answer(answer: httpx.Response) -> None:
    if _NAME in answer.request.extensions:
        received = cast("httpx.SyncByteStream", answer.stream)
        answer.stream = _Watched(received, answer.request, httpx.ReadTimeout)


class _Watched(httpx.SyncByteStream):
    def __init__(
        self, stream: httpx.SyncByteStream, request: httpx.Request, late: type[httpx.TimeoutException]
    ) -> None:
        self._stream = stream
        self._request = request
        self._late = late

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            for at in range(0, len(piece), _PIECE_BYTES):
                if self._request.extensions[_NAME].left < 0:
                    raise self._late(_OVER, request=self._request)
                yield piece[at : at + _PIECE_BYTES]

    def close(self) -> None:
        self._stream.close()
