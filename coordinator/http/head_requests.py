"""Answer HEAD wherever there is GET: with its status and header fields, and without a body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """ASGI middleware that routes HEAD as GET, and ends the response after its header fields."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            # A body would be read from the database for nobody, and a stream of events would never end.
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        routed = {**scope, "method": "GET"}
        try:
            await self._app(routed, receive, send_head)
        finally:
            for key in routed.keys() - scope.keys():  # the request log reads the route
                scope[key] = routed[key]
