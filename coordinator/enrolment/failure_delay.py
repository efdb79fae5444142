"""Read enrolment requests, and count unreadable ones as failures of their address. An address that failed
too often is answered late, without a thread or a database query.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import anyio
from anyio import to_thread
from fastapi import Request

from coordinator.auth import failure_limit
from coordinator.errors import EnrolmentTokenInvalid, Invalid, JsonMalformed, RateLimited
from coordinator.http.dependencies import database_of, settings_of
from coordinator.http.json_body import json_body
from schemas.messages.enrolment import EnrolmentRequest

ENROLMENT_BYTES = 2**14
"""Twice the size of a profile of 8 KiB and a token."""

DELAY_SECONDS = 1.0
"""Delay of the answer to an address that failed too often."""

_MAX_ORIGINS = 10_000


class FailureDelays:
    """Addresses over the failure limit, as known to this process; the oldest are dropped first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def record(self, origin: str, seconds: float) -> None:
        self._until[origin] = self._clock() + seconds
        self._until.move_to_end(origin)
        if len(self._until) > _MAX_ORIGINS:
            self._until.popitem(last=False)

    def seconds(self, origin: str) -> float:
        remaining = self._until.get(origin, 0.0) - self._clock()
        if remaining <= 0:
            self._until.pop(origin, None)
        return max(0.0, remaining)


def enrolment_body() -> Callable[[Request], Awaitable[EnrolmentRequest]]:
    read = json_body(EnrolmentRequest, limit=ENROLMENT_BYTES)

    async def read_or_count(request: Request) -> EnrolmentRequest:
        try:
            return await read(request)
        except (Invalid, JsonMalformed):
            await _count(request)
            raise

    return read_or_count


async def _count(request: Request) -> None:
    """Count an unreadable request.

    Raises:
        RateLimited: the address reached the limit within the last minute; raised after a delay.
    """
    delays: FailureDelays = request.app.state.failure_delays
    address = request.client.host if request.client is not None else ""
    origin = failure_limit.origin_of(address)
    wait = delays.seconds(origin)
    # An address that is over its limit is not counted again, which would cost a query.
    if not wait:
        try:
            await to_thread.run_sync(
                failure_limit.count_failure,
                database_of(request),
                address,
                settings_of(request).failed_enrolments_per_minute,
                EnrolmentTokenInvalid(),
                "",
            )
        except RateLimited as refused:
            wait = refused.seconds
            delays.record(origin, wait)
    if wait:
        # Sleeping holds no thread, however many requests such an address sends.
        await anyio.sleep(DELAY_SECONDS)
        raise RateLimited(wait)
