"""A bad network on loopback: it cuts at any byte, swallows answers, sends requests twice, and trickles."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tests.faults.stress.loops import loop_in_a_thread

Fault = Literal["none", "request-cut", "answer-cut", "answer-swallowed", "request-twice", "trickled"]
FAULTS: tuple[Fault, ...] = (
    "none",
    "request-cut",
    "answer-cut",
    "answer-swallowed",
    "request-twice",
    "trickled",
)

_READ_BYTES = 2**16
_TRICKLED_BYTES = 512
_TRICKLE_BYTES = 16
_SWALLOWED_SECONDS = 0.2


@dataclass
class BadNetwork:
    """Where to reach the coordinator through it, and what it has done so far."""

    url: str
    done: Counter[Fault] = field(default_factory=Counter)


@contextmanager
def bad_network(port: int, *, seed: int) -> Iterator[BadNetwork]:
    """Stand between clients and the coordinator on `port`; each connection has its own fault, or none."""
    network = _Network(port, random.Random(seed))

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(network.connected, "127.0.0.1", 0)

    with loop_in_a_thread("bad-network") as loop:
        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        network.seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield network.seen
        finally:
            loop.call_soon_threadsafe(server.close)


class _Network:
    def __init__(self, port: int, draw: random.Random) -> None:
        self.seen = BadNetwork("")
        self._port = port
        self._draw = draw

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._draw.choice(FAULTS)
        try:
            await self._forward(fault, reader, writer)
        except OSError:
            pass
        finally:
            writer.close()
        self.seen.done[fault] += 1

    async def _forward(
        self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        second: asyncio.StreamWriter | None = None
        if fault == "request-twice":
            _, second = await asyncio.open_connection("127.0.0.1", self._port)
        # A body is 640 kB, a head some 700 bytes: cuts fall into both.
        most = self._draw.choice((300, 3_000, 600_000))
        cut = self._draw.randrange(most)
        up = asyncio.create_task(
            self._pipe(
                reader,
                [up_writer, *([second] if second else [])],
                cut if fault == "request-cut" else None,
                trickle=fault == "trickled",
            )
        )
        down = asyncio.create_task(
            self._pipe(up_reader, [writer], cut if fault == "answer-cut" else None)
            if fault != "answer-swallowed"
            else self._swallow(up_reader)
        )
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            down.cancel()
            up_writer.close()
            if second is not None:
                second.close()

    async def _pipe(
        self,
        reader: asyncio.StreamReader,
        writers: list[asyncio.StreamWriter],
        cut: int | None,
        *,
        trickle: bool = False,
    ) -> None:
        passed = 0
        while piece := await reader.read(_TRICKLE_BYTES if trickle else _READ_BYTES):
            if cut is not None and passed + len(piece) > cut:
                piece = piece[: cut - passed]
            for writer in writers:
                writer.write(piece)
                await writer.drain()
            passed += len(piece)
            if passed == cut:
                return
            if trickle:
                await asyncio.sleep(0.005)
                trickle = passed < _TRICKLED_BYTES

    async def _swallow(self, reader: asyncio.StreamReader) -> None:
        await reader.read(_READ_BYTES)
        await asyncio.sleep(_SWALLOWED_SECONDS)
