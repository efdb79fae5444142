"""Assign request ids, log and measure requests, and render unexpected errors."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import ReplyEnded
from coordinator.http.limits.connections import PEER
from coordinator.http.problems import render_unexpected
from coordinator.observability.logs import logger, route_template, scope
from coordinator.observability.metrics import Metrics

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{8,64}")
log = logger(__name__)


class RequestLog:
    """The outermost ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics, trusts: Callable[[str | None], bool]) -> None:
        self._app = app
        self._metrics = metrics
        self._trusts = trusts

    async def __call__(self, asgi_scope: Scope, receive: Receive, send: Send) -> None:
        if asgi_scope["type"] != "http":
            await self._app(asgi_scope, receive, send)
            return
        is_trusted = self._trusts(asgi_scope.get("state", {}).get(PEER))
        request_id = _request_id(asgi_scope) if is_trusted else secrets.token_hex(8)
        with scope(request=request_id):
            await self._observe(asgi_scope, receive, send, request_id)

    async def _observe(self, asgi_scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        began = time.perf_counter()
        replied = False

        async def record(message: Message) -> None:
            nonlocal replied
            if message["type"] == "http.response.start":
                replied = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                self._record(asgi_scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._app(asgi_scope, receive, record)
        except ReplyEnded as ended:
            log.info(
                "reply-ended", reason=str(ended)
            )  # the server closes the connection of an incomplete response
        except Exception:
            answer, incident = render_unexpected()
            log.exception("request-failed", incident=incident, method=asgi_scope["method"])
            if replied:
                raise  # the response has started: the server can only close the connection
            await answer(asgi_scope, receive, record)

    def _record(self, asgi_scope: Scope, status: int, seconds: float) -> None:
        method, route = asgi_scope["method"], route_template(asgi_scope)
        self._metrics.request_seconds.labels(method, route, str(status)).observe(seconds)
        # Agents poll all the time: a line for every successful read would hide the rest.
        write = log.debug if method in ("GET", "HEAD") and status < 400 else log.info
        write("request", method=method, route=route, status=status, seconds=round(seconds, 4))


def _request_id(asgi_scope: Scope) -> str:
    """Return the request id set by a proxy, or a new one."""
    header = Headers(scope=asgi_scope).get("x-request-id", "")
    return header if _REQUEST_ID.fullmatch(header) else secrets.token_hex(8)
