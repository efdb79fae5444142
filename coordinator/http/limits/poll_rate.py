"""How often one client may ask what it has to do. Each process counts for itself.

A bucket of tokens for each client: asking takes one, time gives them back. Who waits for its round with
`Prefer: wait`, or comes back when it is told to, never finds its bucket empty.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from fastapi import Request

from coordinator.errors import RateLimited

BURST = 10
"""How many may come at once."""

_MOST_CLIENTS = 100_000


class Polls:
    """The buckets of this process; those that were not used for longest are forgotten, which fills them."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client: tokens, as of when
        self._lock = threading.Lock()

    def take(self, client: str) -> None:
        """Let a client ask.

        Raises:
            RateLimited: it asked too often.
        """
        with self._lock:
            moment = self._clock()
            tokens, since = self._buckets.get(client, (float(BURST), moment))
            tokens = min(float(BURST), tokens + (moment - since) * self._per_second)
            enough = tokens >= 1.0
            self._buckets[client] = (tokens - 1.0 if enough else tokens, moment)
            self._buckets.move_to_end(client)
            if len(self._buckets) > _MOST_CLIENTS:
                self._buckets.popitem(last=False)
        if not enough:
            raise RateLimited((1.0 - tokens) / self._per_second)


def polls_of(request: Request) -> Polls:
    """Give the buckets of this process."""
    polls: Polls = request.app.state.polls
    return polls
