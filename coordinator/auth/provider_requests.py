"""Requests to an identity provider. After a failure none are sent for ten seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Final

from coordinator.errors import Refusal
from coordinator.http.outgoing_requests import Answer, NoAnswer, request
from coordinator.observability.logs import logger

log = logger(__name__)

TIMEOUT_SECONDS: Final = 5.0
# Bytes of an answer of the provider; metadata, keys and tokens have some thousands.
_MOST_BYTES: Final = 2**20
# A provider that did not answer is not asked again for so long: waiting callers would take all threads.
_DOWN_SECONDS: Final = 10.0


class ProviderDown(Refusal):
    """The identity provider cannot be asked."""

    status, slug, title = 503, "identity-provider", "The identity provider does not answer; retry later"
    headers: ClassVar[dict[str, str]] = {"Retry-After": "30"}


class ProviderRequests:
    """Sends requests to one provider. All methods raise `ProviderDown`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._down_until = -inf

    def get(self, url: str) -> dict[str, Any]:
        """Return a document; one that is no JSON object counts as no answer."""
        answer = self.send("GET", url)
        try:
            return document_of(answer)
        except ProviderDown:
            self.note_down(url, f"status {answer.status}, and no JSON object")
            raise

    def send(self, method: str, url: str, **options: Any) -> Answer:
        """Return an answer of any status, unless the provider did not answer a moment ago."""
        if self._clock() < self._down_until:
            raise ProviderDown
        try:
            return request(method, url, seconds=TIMEOUT_SECONDS, most_bytes=_MOST_BYTES, **options)
        except NoAnswer as error:
            self.note_down(url, str(error))
            raise ProviderDown from error

    def note_down(self, url: str, reason: str) -> None:
        """Record a failure: no request is sent for ten seconds."""
        self._down_until = self._clock() + _DOWN_SECONDS
        log.warning("identity-provider-down", url=url, reason=reason)


def document_of(answer: Answer) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Raises:
        ProviderDown: the answer is not a JSON object.
    """
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ProviderDown from error
    if not isinstance(document, dict):
        raise ProviderDown
    return document
