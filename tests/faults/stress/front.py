"""One address for several replicas, as of a proxy: a connection goes to a replica that accepts it.

The line to it can be cut, and mended: then whoever is behind it sees connections break, and none begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from tests.faults.stress.loops import loop_in_a_thread


class Front:
    """An address, and the connections that go through it."""

    def __init__(self, ports: Sequence[int], loop: asyncio.AbstractEventLoop) -> None:
        self.url = ""
        self._ports = ports
        self._turn = cycle(ports)
        self._loop = loop
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    def cut(self) -> None:
        """Block all connections."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def mend(self) -> None:
        """Unblock connections."""
        self._is_cut = False

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection to the next replica that takes it."""
        self._open.add(writer)
        try:
            for _ in self._ports:
                if self._is_cut:
                    return
                try:
                    upstream = await asyncio.open_connection("127.0.0.1", next(self._turn))
                except OSError:
                    continue
                up, down = _pipe(reader, upstream[1]), _pipe(upstream[0], writer)
                await asyncio.gather(up, down, return_exceptions=True)
                return
        finally:
            self._open.discard(writer)
            writer.close()


@contextmanager
def front(ports: Sequence[int]) -> Iterator[Front]:
    """Listen on a port of its own and forward every connection."""
    with loop_in_a_thread("front") as loop:
        forwarder = Front(ports, loop)

        async def begin() -> asyncio.Server:
            return await asyncio.start_server(forwarder.connected, "127.0.0.1", 0)

        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        forwarder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield forwarder
        finally:
            loop.call_soon_threadsafe(server.close)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()
