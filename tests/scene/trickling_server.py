"""A server that never ends a response: a few bytes at a time, each before the read timeout."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

_PAUSE_SECONDS = 0.02

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PARTS: dict[str, Callable[[], Iterator[bytes]]] = {
    "headers": lambda: chain([OK], repeat(b"x: y\r\n")),
    "one header": lambda: chain([OK, b"x: "], repeat(b"y")),
    "hints": lambda: repeat(b"HTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n"),
    "body": lambda: chain([OK, b"Content-Length: 100000\r\n\r\n"], repeat(b" ")),
    "chunks": lambda: chain([OK, b"Transfer-Encoding: chunked\r\n\r\n"], repeat(b"1\r\n \r\n")),
    "nothing": lambda: repeat(b""),
}
"""What a server sends, by what it does not end."""


class Trickler:
    """A listening server; `connections` counts those that began."""

    def __init__(self, part: str, *, reads: bool) -> None:
        self._part = PARTS[part]
        self._reads = reads
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._threads[0].start()

    def close(self) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._trickle, args=(connection,)))
            self._threads[-1].start()

    def _trickle(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._reads:
                connection.recv(65536)
            for piece in self._part():
                if self._stopped.wait(_PAUSE_SECONDS):
                    return
                if not self._reads:
                    connection.recv(16)
                connection.sendall(piece)


@contextmanager
def trickling(part: str, *, reads: bool = True) -> Iterator[Trickler]:
    """Serve on loopback for the duration of a block; `reads` = the request is read at once."""
    server = Trickler(part, reads=reads)
    try:
        yield server
    finally:
        server.close()
