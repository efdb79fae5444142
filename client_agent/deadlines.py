"""Give a call a deadline for its body and for its answer's: both end when the time is over.

httpx's own timeouts begin anew with every byte that moves: a coordinator that takes or gives one a minute
would hold an agent for ever. The head of an answer has httpx's timeout only. Knows no path and no message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx

_NAME = "tessera_until"
_PIECE_BYTES = 65536


def until(moment: float) -> dict[str, Any]:
    """Say in a request's extensions when it must be over, on the monotonic clock."""
    return {_NAME: moment}


def hooks() -> dict[str, list[Callable[..., None]]]:
    """Make the event hooks of an httpx client: they end what is past its moment as a timeout of httpx."""
    return {"request": [_watch_request], "response": [_watch_answer]}


def _watch_request(request: httpx.Request) -> None:
    if _NAME in request.extensions:
        sent = cast("httpx.SyncByteStream", request.stream)
        request.stream = _Watched(sent, request, httpx.WriteTimeout)


def _watch_answer(answer: httpx.Response) -> None:
    if _NAME in answer.request.extensions:
        received = cast("httpx.SyncByteStream", answer.stream)
        answer.stream = _Watched(received, answer.request, httpx.ReadTimeout)


class _Watched(httpx.SyncByteStream):
    def __init__(
        self, stream: httpx.SyncByteStream, request: httpx.Request, late: type[httpx.TimeoutException]
    ) -> None:
        self._stream = stream
        self._request = request
        self._late = late

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            for at in range(0, len(piece), _PIECE_BYTES):
                if time.monotonic() > self._request.extensions[_NAME]:
                    raise self._late("the time for the whole call is over", request=self._request)
                yield piece[at : at + _PIECE_BYTES]

    def close(self) -> None:
        self._stream.close()
