"""Sign every request with the client's key, on the coordinator's clock. Knows no path and no message."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from datetime import datetime

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from schemas.identity.signed_requests import Target, sign
from schemas.problems import Problem
from schemas.wire.digests import digest_of, to_field

_NONCE_BYTES = 18


class SignedRequests(httpx.Auth):
    """Signs requests as httpx sends them, each try anew.

    A coordinator that finds our clock wrong says what time it is; the request is then sent once more, and
    later ones go by its clock.
    """

    requires_request_body = True

    def __init__(self, key: Ed25519PrivateKey, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock
        self._ahead = 0.0  # how far the coordinator's clock is before ours, seconds

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign, send, and after a `clock-skew` sign and send once more."""
        request.read()
        self._sign(request)
        answer = yield request
        if answer.status_code != httpx.codes.UNAUTHORIZED:
            return
        answer.read()
        told = _server_time(answer)
        if told is not None:
            self._ahead = told - self._clock()
            self._sign(request)
            yield request

    def now(self) -> float:
        """Tell the time on the coordinator's clock, as far as it is known."""
        return self._clock() + self._ahead

    def _sign(self, request: httpx.Request) -> None:
        if request.content and "Content-Digest" not in request.headers:
            request.headers["Content-Digest"] = to_field(digest_of(request.content))
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        target = Target(
            method=request.method,
            authority=request.headers["Host"],
            path=path,
            query=query,
            content_digest=request.headers.get("Content-Digest"),
        )
        created = int(self.now())
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        request.headers.update(sign(target, self._key, created=created, nonce=nonce))


def _server_time(answer: httpx.Response) -> float | None:
    """Read what time the coordinator has, if that is what it objects to."""
    try:
        problem = Problem.model_validate_json(answer.content)
        if problem.slug != "clock-skew":
            return None
        return datetime.fromisoformat(str((problem.model_extra or {}).get("server_time"))).timestamp()
    except (ValidationError, ValueError):
        return None
