"""How many enrolments may fail from one address before it has to wait. Each process counts for itself.

Knows no token: 256 random bits are not guessed, but whoever tries costs transactions.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from coordinator.errors import RateLimited

_MINUTE = 60.0
_MOST_ADDRESSES = 10_000


class FailedEnrolments:
    """Counts failures by address; of IPv6 the first 64 bits, which is what one household has."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Let an address try.

        Raises:
            RateLimited: it failed too often within the last minute.
        """
        with self._lock:
            times = self._failures.get(_origin(address))
            if times is None or len(times) < self._per_minute:
                return
            wait = times[0] + _MINUTE - self._clock()
        if wait > 0:
            raise RateLimited(wait)

    def note(self, address: str) -> None:
        """Remember that an address failed."""
        with self._lock:
            times = self._failures.setdefault(_origin(address), deque(maxlen=self._per_minute))
            times.append(self._clock())
            self._failures.move_to_end(_origin(address))
            if len(self._failures) > _MOST_ADDRESSES:
                self._failures.popitem(last=False)


def _origin(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address):
        return parsed.exploded[:19]
    return address
