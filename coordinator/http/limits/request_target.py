"""Check what a request is addressed to: one Host field that names this server, and a path spelt in one way.

A name that a browser resolves to this server without being ours (DNS rebinding) reaches nothing. A path whose
percent-encoding hides a letter or a slash is not found: a proxy's rule for paths would not have seen it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.errors import AuthorityUnknown, NotFound, Refused, RequestMalformed
from coordinator.http.problems import render

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""What probes ask for, under whichever address a container has."""

_HIDDEN = re.compile(rb"%(?:2[dDeEfF]|3[0-9]|[46][1-9a-fA-F]|[57][0-9aA]|5[fF]|7[eE])")
"""A percent-encoded slash or unreserved character (RFC 3986, section 2.3)."""


class Targets:
    """A layer around the routes; `goes_by` says whether a Host field names this server."""

    def __init__(self, app: ASGIApp, goes_by: Callable[[str], bool]) -> None:
        self._app = app
        self._goes_by = goes_by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before anything of it is looked at."""
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await render(refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> Refused | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return RequestMalformed("send exactly one Host field")
        if scope["path"] not in HEALTH_PATHS and not self._goes_by(hosts[0].decode("latin-1")):
            return AuthorityUnknown(
                "set TESSERA_PUBLIC_NAMES on the server to the names in the URLs that clients use"
            )
        if _HIDDEN.search(scope["raw_path"]):
            return NotFound("a slash, letter, digit or one of -._~ is percent-encoded in the path")
        return None
