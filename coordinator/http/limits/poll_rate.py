"""Limit the polls of each client with a token bucket per process. Long polls, and polls after
Retry-After, never empty it. A refused poll is answered late, so that a client that asks again at once on many
connections delays nobody else.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from fastapi import Request

from coordinator.errors import RateLimited

BURST = 10
"""Size of a bucket: polls that may come at once."""

REFUSAL_SECONDS = 1.0
"""Delay of the answer to a poll that is refused."""

_MAX_CLIENTS = 100_000


class PollRate:
    """The buckets of this process; the least recently used are dropped, which refills them."""

    def __init__(
        self, per_second: float, clock: Callable[[], float] = time.monotonic, *, burst: int = BURST
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client id -> tokens, time
        self._lock = threading.Lock()

    def take(self, client_id: str) -> None:
        """Take a token of a client.

        Raises:
            RateLimited: its bucket is empty.
        """
        with self._lock:
            now = self._clock()
            tokens, since = self._buckets.get(client_id, (self._burst, now))
            tokens = min(self._burst, tokens + (now - since) * self._per_second)
            is_allowed = tokens >= 1.0
            self._buckets[client_id] = (tokens - 1.0 if is_allowed else tokens, now)
            self._buckets.move_to_end(client_id)
            if len(self._buckets) > _MAX_CLIENTS:
                self._buckets.popitem(last=False)
        if not is_allowed:
            raise RateLimited((1.0 - tokens) / self._per_second)


@asynccontextmanager
async def late_refusal() -> AsyncIterator[None]:
    """Delay the refusal of a poll in the block; the wait holds no thread and no database connection."""
    try:
        yield
    except RateLimited:
        await anyio.sleep(REFUSAL_SECONDS)
        raise


def poll_rate_of(request: Request) -> PollRate:
    rate: PollRate = request.app.state.poll_rate
    return rate
