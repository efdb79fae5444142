"""Watch every request go by: its id, its log line, its latency, and the fault that nobody expected."""

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
from coordinator.observability.logs import logger, scope
from coordinator.observability.metrics import Metrics

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{8,64}")
log = logger(__name__)


class Observed:
    """The outermost layer of the service."""

    def __init__(self, app: ASGIApp, metrics: Metrics, trusts: Callable[[str | None], bool]) -> None:
        self._app = app
        self._metrics = metrics
        self._trusts = trusts

    async def __call__(self, asgi_scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and look at what comes back."""
        if asgi_scope["type"] != "http":
            await self._app(asgi_scope, receive, send)
            return
        is_trusted = self._trusts(asgi_scope.get("state", {}).get(PEER))
        request_id = _request_id(asgi_scope) if is_trusted else secrets.token_hex(8)
        with scope(request=request_id):
            await self._watch(asgi_scope, receive, send, request_id)

    async def _watch(self, asgi_scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        began = time.perf_counter()
        replied = False

        async def note(message: Message) -> None:
            nonlocal replied
            if message["type"] == "http.response.start":
                replied = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                self._record(asgi_scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._app(asgi_scope, receive, note)
        except ReplyEnded as ended:
            log.info("reply-ended", reason=str(ended))  # the server cuts the connection of half an answer
        except Exception:
            answer, incident = render_unexpected()
            log.exception("request-failed", incident=incident, method=asgi_scope["method"])
            if replied:
                raise  # the reply is on its way: the server can only cut the connection
            await answer(asgi_scope, receive, note)

    def _record(self, asgi_scope: Scope, status: int, seconds: float) -> None:
        method, route = asgi_scope["method"], _template(asgi_scope)
        self._metrics.request_seconds.labels(method, route, str(status)).observe(seconds)
        # Agents poll all the time: a line for every successful read would bury the others.
        say = log.debug if method in ("GET", "HEAD") and status < 400 else log.info
        say("request", method=method, route=route, status=status, seconds=round(seconds, 4))


def _template(asgi_scope: Scope) -> str:
    """Name the route, never the path: paths are unbounded and hold ids."""
    route = asgi_scope.get("route")
    return str(getattr(route, "path_format", None) or getattr(route, "path", None) or "unknown")


def _request_id(asgi_scope: Scope) -> str:
    """Return the id that a proxy gave to a request, or one of our own."""
    given = Headers(scope=asgi_scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
