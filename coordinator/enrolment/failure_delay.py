"""Read an enrolment, and count one that cannot be read as a failure of the address that it came from.

Whoever failed too often there is answered late, which costs neither a thread nor a look at the database: a
message that can be read is never held up by it.
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
"""What a profile of 8 KiB and a token take, and as much again."""

LATE_SECONDS = 1.0
"""How late an address that failed too often is answered."""

_MOST_ORIGINS = 10_000


class FailureDelays:
    """Which addresses failed too often, as this process knows; the oldest are forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def note(self, origin: str, seconds: float) -> None:
        """Note that failures from there are not counted for so long."""
        self._until[origin] = self._clock() + seconds
        self._until.move_to_end(origin)
        if len(self._until) > _MOST_ORIGINS:
            self._until.popitem(last=False)

    def seconds(self, origin: str) -> float:
        """Return how long failures from there are not counted; 0 if they are."""
        left = self._until.get(origin, 0.0) - self._clock()
        if left <= 0:
            self._until.pop(origin, None)
        return max(0.0, left)


def enrolment_body() -> Callable[[Request], Awaitable[EnrolmentRequest]]:
    """Make the dependency that reads an enrolment."""
    read = json_body(EnrolmentRequest, limit=ENROLMENT_BYTES)

    async def read_or_count(request: Request) -> EnrolmentRequest:
        try:
            return await read(request)
        except (Invalid, JsonMalformed):
            await _count(request)
            raise

    return read_or_count


async def _count(request: Request) -> None:
    """Count a message that cannot be read.

    Raises:
        RateLimited: as many failed from there within the last minute; it is raised late.
    """
    stumbles: FailureDelays = request.app.state.failure_delays
    address = request.client.host if request.client is not None else ""
    origin = failure_limit.origin_of(address)
    wait = stumbles.seconds(origin)
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
            stumbles.note(origin, wait)
    if wait:
        await anyio.sleep(LATE_SECONDS)
        raise RateLimited(wait)
