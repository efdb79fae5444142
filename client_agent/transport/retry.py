"""Send a request again until it is answered for good, or a deadline passes. Knows no path and no message.

Decides what is worth trying again and how long to wait.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import httpx

from client_agent.errors import CoordinatorUnreachable
from client_agent.transport.responses import accepted, is_refusal, retry_after
from client_agent.transport.timeouts import Deadline

RANGE_UNSATISFIABLE = 416  # the connection broke behind the last byte
_TRY_AGAIN = frozenset({408, RANGE_UNSATISFIABLE, 425, 429, 500, 502, 503, 504, 507})
_SHORTEST_CEILING, _LONGEST_CEILING = 1.0, 60.0
_ONE_TRY_SECONDS = 5.0  # what a call may take however short its deadline is
_STOP_LOOK_SECONDS = 0.25
_QUIET_SECONDS, _TELL_SECONDS = 3.0, 60.0  # what passes by itself soon is not worth a line; then one a minute

log = logging.getLogger("tessera.agent")

Sleep = Callable[[float], None]
Send = Callable[[dict[str, Any]], httpx.Response]
"""Sends a request with these extensions of httpx, and gives the answer."""


def persist(send: Send, *, url: str, deadline_seconds: float, sleep: Sleep, size: int = 0) -> httpx.Response:
    """Give the good answer to what `send` asks at `url` with a body of `size` bytes.

    Raises:
        CoordinatorUnreachable: there was none within the deadline.
        CoordinatorRefused: another one, which trying again would not change, or not within the deadline.
    """
    began, ceiling = time.monotonic(), _SHORTEST_CEILING
    told = began + _QUIET_SECONDS - _TELL_SECONDS
    more = max(0.0, _ONE_TRY_SECONDS - deadline_seconds)
    deadline = Deadline(deadline_seconds + more, size=size)
    while True:
        advised: float | None = None
        answer: httpx.Response | None = None
        try:
            answer = send(deadline.extensions)
        except httpx.TransportError as error:
            trouble = f"{type(error).__name__}: {error}"
        else:
            # Where a network has doubled our request, its copy was there first: sign another.
            if answer.status_code not in _TRY_AGAIN and not is_refusal(answer, "replayed"):
                return accepted(answer)
            trouble, advised = f"status {answer.status_code}", retry_after(answer)
        # Full jitter: agents that lost the same coordinator must not come back all at once.
        pause = max(advised or 0.0, random.uniform(0.0, ceiling))
        if pause > deadline.left - more:
            if answer is not None and answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                accepted(answer)
            raise CoordinatorUnreachable(url, trouble, time.monotonic() - began)
        if time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            log.warning("%s: %s; trying again for up to %d s", url, trouble, deadline.left - more)
        sleep(pause)
        ceiling = min(2 * ceiling, _LONGEST_CEILING)


def unless_stopped(send: Callable[[], httpx.Response], sleep: Sleep) -> httpx.Response:
    """Send what may take long to be answered in a thread of its own, so that a stop need not wait for it.

    The thread that is left behind ends with its connection, at the latest with the process.
    """
    sent: Future[httpx.Response] = Future()

    def run() -> None:
        try:
            sent.set_result(send())
        except BaseException as error:
            sent.set_exception(error)

    threading.Thread(target=run, name="waits-for-a-round", daemon=True).start()
    while not wait([sent], _STOP_LOOK_SECONDS).done:
        sleep(0.0)
    return sent.result()
