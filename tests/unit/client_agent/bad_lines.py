"""Connections of agents that lose updates or their receipts."""

from __future__ import annotations

import re

import httpx


class DelayedUpdates(httpx.HTTPTransport):
    """Delivers the updates of round 1 five minutes late, as a proxy on a slow line does, or not at all."""

    def __init__(self, is_late: bool) -> None:
        super().__init__()
        self._is_late = is_late

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds/1/update"):
            if not self._is_late:
                raise httpx.WriteTimeout("the line is slow", request=request)
            signature_input = request.headers["Signature-Input"]
            for moment in re.findall("[0-9]{10}", signature_input):
                signature_input = signature_input.replace(moment, str(int(moment) - 300), 1)
            request.headers["Signature-Input"] = signature_input
        return super().handle_request(request)


class LostReceipts(httpx.HTTPTransport):
    """Lets updates through and loses every answer to one."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.url.path.endswith("/update"):
            answer.close()
            raise httpx.ReadError("the answer was lost", request=request)
        return answer
