"""Reserve the last connections for health probes and people: any other caller is refused with `busy`."""

from __future__ import annotations

from anyio import to_thread
from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.auth.authentication import Person, authenticated
from coordinator.errors import Busy, Refusal
from coordinator.http.limits.connections import IS_RESERVED
from coordinator.http.limits.request_target import HEALTH_PATHS
from coordinator.http.problems import render


class ConnectionReserve:
    """ASGI middleware that checks requests on reserved connections."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_reserved = scope["type"] == "http" and scope.get("state", {}).get(IS_RESERVED, False)
        if is_reserved and scope["path"] not in HEALTH_PATHS and not await _is_from_person(scope):
            await render(
                Busy("the remaining connections are reserved for health probes and people; retry later")
            )(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _is_from_person(scope: Scope) -> bool:
    request = Request(scope)
    # People send tokens; checking the signatures of clients here would cost what the reserve saves.
    if "authorization" not in request.headers:
        return False
    try:
        return isinstance(await to_thread.run_sync(authenticated, request), Person)
    except Refusal:
        return False
