"""One address before several replicas, as a proxy has it: connections go to whoever takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from tests.torture.loops import loop_in_a_thread


@contextmanager
def front(ports: Sequence[int]) -> Iterator[str]:
    """Listen on a port of its own and forward every connection to the next replica that accepts it."""
    turn = cycle(ports)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in ports:
                try:
                    upstream = await asyncio.open_connection("127.0.0.1", next(turn))
                except OSError:
                    continue
                up, down = _pipe(reader, upstream[1]), _pipe(upstream[0], writer)
                await asyncio.gather(up, down, return_exceptions=True)
                return
        finally:
            writer.close()

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(connected, "127.0.0.1", 0)

    with loop_in_a_thread("front") as loop:
        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(server.close)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()
