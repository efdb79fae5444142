"""Sign every request with the client's key, on the coordinator's clock. Knows no message but the greeting."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Generator

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from client_agent.errors import AgentError, CoordinatorNotTrusted, RequestTooSlow
from client_agent.transport.handshake import check_hello, new_challenge
from client_agent.transport.responses import accepted, read
from schemas.identity.keys import thumbprint
from schemas.identity.signed_requests import SKEW_SECONDS, Target, sign
from schemas.messages.tokens import Hello
from schemas.problems import Problem
from schemas.wire.digests import digest_of, to_field

log = logging.getLogger("tessera.agent")

_NONCE_BYTES = 18
_GREETING_SECONDS = 60.0
# A coordinator's clock may be set while it tells the time, and hardly three times in a row.
_MOST_CORRECTIONS = 3


class SignedRequests(httpx.Auth):
    """Signs requests as httpx sends them, each try anew.

    Where the coordinator finds our clock wrong, it is asked for the time, and only what it signs with
    `server_key` is believed: who stands in between must not make us sign for a later time. The request is
    then sent again, and later ones go by its clock. Without `server_key` our own clock is all there is.
    """

    requires_request_body = True

    def __init__(
        self,
        key: Ed25519PrivateKey,
        server_key: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._server_key = server_key
        self._clock = clock
        self._ahead = 0.0  # how far the coordinator's clock is before ours, seconds

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign, send, and after a `clock-skew` ask for the time, sign and send again.

        Raises:
            CoordinatorRefused: the time that was told is not the coordinator's own word.
            RequestTooSlow: the clock is good enough: the request was too long on its way.
        """
        request.read()
        self._sign(request)
        answer = yield request
        for _ in range(_MOST_CORRECTIONS):
            if self._server_key is None or not _is_about_the_clock(answer):
                return
            ahead = yield from self._ask_the_time(request, self._server_key)
            if ahead is None:
                accepted(answer)
                return
            moved, self._ahead = abs(ahead - self._ahead), ahead
            if moved < SKEW_SECONDS:
                raise RequestTooSlow(request.url.path)
            self._sign(request)
            answer = yield request

    def _ask_the_time(
        self, request: httpx.Request, server_key: str
    ) -> Generator[httpx.Request, httpx.Response, float | None]:
        """Ask how far the coordinator's clock is before ours, seconds; None if the answer proves nothing."""
        challenge, asked_at = new_challenge(), self._clock()
        path = f"/v1/hello?challenge={challenge}".encode()
        greeting = yield httpx.Request(
            "GET",
            request.url.copy_with(raw_path=path),
            headers={"Accept-Encoding": "identity"},
            extensions=request.extensions,
        )
        greeting.read()
        try:
            return _told(greeting, challenge, server_key, asked_at, self._clock())
        except AgentError as error:
            log.warning("this clock is said to be wrong, and what says so proves no other time: %s", error)
            return None

    def sign_with(self, key: Ed25519PrivateKey) -> None:
        """Sign with another key from now on."""
        self._key = key

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
            prefer=request.headers.get("Prefer"),
            range=request.headers.get("Range"),
        )
        created = int(self.now())
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        request.headers.update(sign(target, self._key, created=created, nonce=nonce))


def _told(
    greeting: httpx.Response, challenge: str, server_key: str, asked_at: float, answered_at: float
) -> float:
    """Read how far the coordinator's clock is before ours: what delays the answer makes it less, never more.

    Raises:
        AgentError: the greeting is not the coordinator's answer to `challenge`, or took too long.
    """
    hello = read(Hello, accepted(greeting))
    check_hello(greeting.content, hello, challenge=challenge, pin=thumbprint(server_key))
    if answered_at - asked_at > _GREETING_SECONDS:
        raise CoordinatorNotTrusted
    return hello.server_time.timestamp() - answered_at


def _is_about_the_clock(answer: httpx.Response) -> bool:
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        return False
    answer.read()
    try:
        return Problem.model_validate_json(answer.content).slug == "clock-skew"
    except ValidationError:
        return False
