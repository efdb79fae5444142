"""Keep the last few connections for health probes and people, whose token is looked up before anything else.

A client's credential, a signature, an unknown token or none: they are told to come again.
"""

from __future__ import annotations

from anyio import to_thread
from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.auth.authentication import Person, authenticated
from coordinator.errors import Busy, Refused
from coordinator.http.limits.connections import IS_RESERVED
from coordinator.http.limits.request_target import HEALTH_PATHS
from coordinator.http.problems import render


class ReservedForPeople:
    """A layer around the routes; it looks only at requests of reserved connections."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless its connection is reserved for others."""
        is_reserved = scope["type"] == "http" and scope.get("state", {}).get(IS_RESERVED, False)
        if is_reserved and scope["path"] not in HEALTH_PATHS and not await _is_a_persons(scope):
            await render(Busy("the connections that are left are reserved"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _is_a_persons(scope: Scope) -> bool:
    request = Request(scope)
    if "authorization" not in request.headers:
        return False
    try:
        return isinstance(await to_thread.run_sync(authenticated, request), Person)
    except Refused:
        return False
