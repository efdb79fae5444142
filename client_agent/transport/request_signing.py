"""Sign every request with the client's key, on the coordinator's clock."""

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
from client_agent.transport.responses import read, require_success
from schemas.identity.keys import thumbprint
from schemas.identity.signed_requests import SKEW_SECONDS, Target, sign
from schemas.messages.tokens import Hello
from schemas.problems import Problem
from schemas.wire.digests import digest_of, to_field

log = logging.getLogger("tessera.agent")

_NONCE_BYTES = 18
_GREETING_SECONDS = 60.0
# The coordinator's clock may be adjusted during the correction, but hardly three times in a row.
_MOST_CORRECTIONS = 3


class SignedRequests(httpx.Auth):
    """Signs each try of a request as httpx sends it.

    After a `clock-skew` refusal it fetches the coordinator's time and accepts only a time signed with
    `server_key`: a proxy must not obtain signatures for a later time. The request is then repeated, and later
    requests use the corrected clock. Without `server_key` the local clock is used. `root_path` is the path of
    the coordinator's URL.
    """

    requires_request_body = True

    def __init__(
        self,
        key: Ed25519PrivateKey,
        server_key: str | None = None,
        clock: Callable[[], float] = time.time,
        root_path: str = "",
    ) -> None:
        self._key = key
        self._root_path = root_path
        self._server_key = server_key
        self._clock = clock
        self._offset = 0.0  # coordinator's clock minus local clock, seconds

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign and send; after `clock-skew` correct the clock, sign and send again.

        Raises:
            CoordinatorRefused: the time in the answer is not signed by the coordinator.
            RequestTooSlow: the clock is correct, and the request took too long in transit.
        """
        # The digest of the body is signed, so the body has to be complete before the first try.
        request.read()
        self._sign(request)
        answer = yield request
        for _ in range(_MOST_CORRECTIONS):
            if self._server_key is None or not _is_clock_skew(answer):
                return
            offset = yield from self._fetch_clock_offset(request, self._server_key)
            if offset is None:
                require_success(answer)
                return
            # A correction below the tolerance does not explain the refusal: the request was too old on
            # arrival.
            change, self._offset = abs(offset - self._offset), offset
            if change < SKEW_SECONDS:
                raise RequestTooSlow(request.url.path)
            self._sign(request)
            answer = yield request

    def _fetch_clock_offset(
        self, request: httpx.Request, server_key: str
    ) -> Generator[httpx.Request, httpx.Response, float | None]:
        """Fetch the clock offset in seconds; None if the answer does not prove it."""
        challenge, asked_at = new_challenge(), self._clock()
        path = f"{self._root_path}/v1/hello?challenge={challenge}".encode()
        greeting = yield httpx.Request(
            "GET",
            request.url.copy_with(raw_path=path),
            # The signature covers the exact bytes of the answer.
            headers={"Accept-Encoding": "identity"},
            extensions=request.extensions,
        )
        greeting.read()
        try:
            return _clock_offset(greeting, challenge, server_key, asked_at, self._clock())
        except AgentError as error:
            log.warning(
                "clock: refused without a proven time (%s); not corrected: check the clock of this machine",
                error,
            )
            return None

    def sign_with(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def now(self) -> float:
        """Return the coordinator's time, seconds since 1970, with the last proven offset."""
        return self._clock() + self._offset

    def _sign(self, request: httpx.Request) -> None:
        if request.content and "Content-Digest" not in request.headers:
            request.headers["Content-Digest"] = to_field(digest_of(request.content))
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        target = Target(
            method=request.method,
            # The header as it is sent, because httpx leaves out a default port.
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


def _clock_offset(
    greeting: httpx.Response, challenge: str, server_key: str, asked_at: float, answered_at: float
) -> float:
    """Return coordinator clock minus local clock, seconds; a delay of the answer can only reduce it.

    Raises:
        AgentError: the greeting is not the coordinator's answer to `challenge`, or took too long.
    """
    hello = read(Hello, require_success(greeting))
    check_hello(greeting.content, hello, challenge=challenge, pin=thumbprint(server_key))
    # A proxy that holds the answer back could set the clock back by as long.
    if answered_at - asked_at > _GREETING_SECONDS:
        raise CoordinatorNotTrusted
    # Measured at the arrival: a delay can only make requests look older, and never valid for longer.
    return hello.server_time.timestamp() - answered_at


def _is_clock_skew(answer: httpx.Response) -> bool:
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        return False
    answer.read()
    try:
        return Problem.model_validate_json(answer.content).slug == "clock-skew"
    except ValidationError:
        return False
