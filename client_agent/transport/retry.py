"""Retry requests until success, a permanent error, or the deadline."""

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
from client_agent.transport.responses import is_refusal, require_success, retry_after
from client_agent.transport.timeouts import Deadline

RANGE_UNSATISFIABLE = 416  # the connection broke after the last byte
_RETRYABLE = frozenset({408, RANGE_UNSATISFIABLE, 425, 429, 500, 502, 503, 504, 507})
_SHORTEST_CEILING, _LONGEST_CEILING = 1.0, 60.0
_ONE_TRY_SECONDS = 5.0  # the minimum time of one call, whatever its deadline
_STOP_POLL_SECONDS = 0.25
_QUIET_SECONDS, _LOG_SECONDS = 3.0, 60.0  # short outages are not logged; longer ones once a minute

log = logging.getLogger("tessera.agent")

Sleep = Callable[[float], None]
Send = Callable[[dict[str, Any]], httpx.Response]
"""Sends a request with these extensions of httpx, and returns the answer."""


def send_with_retries(
    send: Send, *, url: str, deadline_seconds: float, sleep: Sleep, size: int = 0
) -> httpx.Response:
    """Return the successful answer to a request to `url` with a body of `size` bytes.

    Raises:
        CoordinatorUnreachable: no answer arrived within the deadline.
        CoordinatorRefused: a permanent error, or a rate limit beyond the deadline.
    """
    started, ceiling = time.monotonic(), _SHORTEST_CEILING
    last_logged = started + _QUIET_SECONDS - _LOG_SECONDS
    grace = max(0.0, _ONE_TRY_SECONDS - deadline_seconds)
    deadline = Deadline(deadline_seconds + grace, size=size)
    while True:
        server_pause: float | None = None
        answer: httpx.Response | None = None
        try:
            answer = send(deadline.extensions)
        except httpx.TransportError as error:
            failure = f"{type(error).__name__}: {error}"
        else:
            # A network may duplicate a request: the second copy is refused as replayed. Sign it again.
            if answer.status_code not in _RETRYABLE and not is_refusal(answer, "replayed"):
                return require_success(answer)
            failure, server_pause = f"status {answer.status_code}", retry_after(answer)
        # Full jitter: agents of a restarted coordinator must not return all at once.
        pause = max(server_pause or 0.0, random.uniform(0.0, ceiling))
        if pause > deadline.remaining - grace:
            if answer is not None and answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                require_success(answer)
            raise CoordinatorUnreachable(url, failure, time.monotonic() - started)
        if time.monotonic() - last_logged > _LOG_SECONDS:
            last_logged = time.monotonic()
            log.warning(
                "%s: request failed (%s); retrying for up to %d s", url, failure, deadline.remaining - grace
            )
        sleep(pause)
        ceiling = min(2 * ceiling, _LONGEST_CEILING)


def interruptible(send: Callable[[], httpx.Response], sleep: Sleep) -> httpx.Response:
    """Send a long poll in a thread, and raise from `sleep` on a stop without waiting for the answer.

    An abandoned thread ends with its connection, at the latest with the process.
    """
    response: Future[httpx.Response] = Future()

    def run() -> None:
        try:
            response.set_result(send())
        except BaseException as error:
            response.set_exception(error)

    threading.Thread(target=run, name="long-poll", daemon=True).start()
    while not wait([response], _STOP_POLL_SECONDS).done:
        sleep(0.0)
    return response.result()
