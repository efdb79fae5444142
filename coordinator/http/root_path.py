"""Serve the coordinator below a path, whether the proxy in front removes the path or passes it on.

Routes and limits see a request's path without the root path; signatures are verified with it.
"""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """ASGI middleware that removes `root_path` from the paths of requests.

    The root path itself is redirected to the page, whose links are relative to the trailing slash.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._root_path and self._begins(scope):
            if scope["path"] == self._root_path:
                await RedirectResponse(f"{self._root_path}/", 308)(scope, receive, send)
                return
            length = len(self._root_path)
            # In place: the request log reads the route from this scope.
            scope["path"], scope["raw_path"] = scope["path"][length:], scope["raw_path"][length:]
        await self._app(scope, receive, send)

    def _begins(self, scope: Scope) -> bool:
        """Whether the path as sent begins with the root path; an encoded spelling does not."""
        raw: bytes = scope["raw_path"]
        root = self._root_path.encode()
        return raw == root or raw.startswith(root + b"/")
