"""Requests of the coordinator to servers outside, each bounded as a whole in time and bytes.

A timeout of a client counts from one byte to the next, so that a server which sends a byte every few seconds
holds the caller as long as it likes. Here connecting, sending, headers and body share one deadline.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from schemas.http_environment import EnvironmentUnusable, route_to

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server; `body` is empty if it was not read."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class NoAnswer(Exception):
    """There was none in time, or too long a one; the message is the reason in a word."""


def request(method: str, url: str, *, seconds: float, most_bytes: int, **options: Any) -> Answer:
    """Send a request and return the answer; redirects are not followed. For threads without an event loop.

    Args:
        seconds: the deadline of the whole exchange. Only the system's resolver has limits of its own.
        most_bytes: of the decoded body; 0 = it is not read.
        options: of `httpx.AsyncClient.stream`.

    Raises:
        NoAnswer: the server does not answer in time, its answer is no HTTP or too long, or the environment
            names an unusable proxy or certificate.
    """
    try:
        # A loop of its own: only asyncio can cancel an exchange at any point of it.
        return asyncio.run(_exchange(method, url, seconds, most_bytes, options))
    except TimeoutError as error:
        raise NoAnswer("Deadline") from error
    except EnvironmentUnusable as error:
        log.error("request not sent", url=url, reason=str(error))
        raise NoAnswer("EnvironmentUnusable") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NoAnswer(type(error).__name__) from error


async def _exchange(
    method: str, url: str, seconds: float, most_bytes: int, options: dict[str, Any]
) -> Answer:
    route: dict[str, Any] = route_to(url).options
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(**route, timeout=seconds, follow_redirects=False) as client,
        client.stream(method, url, **options) as answer,
    ):
        body = bytearray()
        if most_bytes:
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > most_bytes:
                    raise NoAnswer("TooLong")
        return Answer(answer.status_code, bytes(body))
