"""Limit the polls of each client with a token bucket per process. Long polls, and polls after
Retry-After, never empty it.

Refused polls are answered in turn: the event loop serves requests in the order of their arrival, so a client
that polls again at once on sixty connections would have sixty requests ahead of every other caller's.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
from fastapi import Request

from coordinator.errors import RateLimited, Refusal

BURST = 10
"""Size of a bucket: polls that may come at once."""

REFUSAL_SECONDS = 0.1
"""Time between the answers to two refused polls of a client."""

MAX_DELAY_SECONDS = 30.0
"""Longest delay of the answer to a refused poll, as of a poll that waits."""

_MAX_CLIENTS = 100_000
_CHECK_SECONDS = 1.0


class PollRefused(RateLimited):
    """The bucket of a client is empty; the answer is due `delay` seconds later."""

    def __init__(self, seconds: float, delay: float) -> None:
        super().__init__(seconds)
        self.delay = delay


class _Bucket(NamedTuple):
    tokens: float
    since: float
    next_refusal: float


class PollRate:
    """The buckets of this process; the least recently used are dropped, which refills them."""

    def __init__(
        self, per_second: float, clock: Callable[[], float] = time.monotonic, *, burst: int = BURST
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # by client id
        self._lock = threading.Lock()

    def take(self, client_id: str) -> None:
        """Take a token of a client.

        Raises:
            PollRefused: its bucket is empty.
        """
        with self._lock:
            now = self._clock()
            tokens, since, next_refusal = self._buckets.get(client_id, _Bucket(self._burst, now, now))
            tokens = min(self._burst, tokens + (now - since) * self._per_second)
            is_allowed = tokens >= 1.0
            delay = min(max(0.0, next_refusal - now), MAX_DELAY_SECONDS)
            if is_allowed:
                tokens -= 1.0
            else:
                # Each further refusal is answered later, so that polling at once gains nothing.
                next_refusal = now + delay + REFUSAL_SECONDS
            self._buckets[client_id] = _Bucket(tokens, now, next_refusal)
            self._buckets.move_to_end(client_id)
            # Bounded memory: a client that is forgotten gets a full bucket.
            if len(self._buckets) > _MAX_CLIENTS:
                self._buckets.popitem(last=False)
        if not is_allowed:
            raise PollRefused((1.0 - tokens) / self._per_second, delay)


@asynccontextmanager
async def answered_in_turn(request: Request) -> AsyncIterator[None]:
    """Delay a refusal of `PollRate.take` in this block until its turn."""
    try:
        yield
    except PollRefused as refused:
        await _wait(request, refused.delay)
        raise


async def _wait(request: Request, seconds: float) -> None:
    """Wait without a thread or a database connection, until the client has gone or the service stops."""
    stopping: threading.Event = request.app.state.stopping
    deadline = time.monotonic() + seconds
    while not stopping.is_set() and (remaining := deadline - time.monotonic()) > 0:
        with anyio.move_on_after(min(remaining, _CHECK_SECONDS)):
            try:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            except Refusal:  # a body that a poll has no use for
                pass
            return


def poll_rate_of(request: Request) -> PollRate:
    rate: PollRate = request.app.state.poll_rate
    return rate
