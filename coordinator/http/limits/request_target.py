"""Check the target of a request: exactly one Host field that names this server, against DNS rebinding,
and no path in a spelling that a proxy may change, which would bypass its rules or break signatures.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.errors import AuthorityUnknown, NotFound, Refusal, RequestMalformed
from coordinator.http.problems import render

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths of health probes, which may use any host name."""

_METRICS_PATH = "/metrics"

# A percent-encoded slash or unreserved character (RFC 3986, section 2.3).
_ENCODED = re.compile(rb"%(?:2[dDeEfF]|3[0-9]|[46][1-9a-fA-F]|[57][0-9aA]|5[fF]|7[eE])")

# An empty segment: no path of the coordinator has one, and proxies remove some.
_EMPTY = re.compile(rb"//|.+/$")


class TargetCheck:
    """ASGI middleware; `is_own_name` decides whether a Host field names this server."""

    def __init__(self, app: ASGIApp, is_own_name: Callable[[str], bool]) -> None:
        self._app = app
        self._is_own_name = is_own_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await render(refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> Refusal | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        # Of two fields a proxy may have checked the other one.
        if len(hosts) != 1:
            return RequestMalformed("the request has no Host field or several; send exactly one")
        if not self._is_named(hosts[0].decode("latin-1"), scope):
            return AuthorityUnknown(
                "the Host field is not in TESSERA_PUBLIC_NAMES; add the name that clients use, on the server"
            )
        if _ENCODED.search(scope["raw_path"]):
            return NotFound(
                "a slash, letter, digit or one of -._~ is percent-encoded in the path; send it unencoded"
            )
        if _EMPTY.search(scope["raw_path"]):
            return NotFound("the path has two slashes in a row or ends with one; send it without")
        return None

    def _is_named(self, host: str, scope: Scope) -> bool:
        """Whether a Host field names this server; Prometheus names a replica by its address."""
        if scope["path"] in HEALTH_PATHS or self._is_own_name(host):
            return True
        return scope["path"] == _METRICS_PATH and host in _addresses(scope)


def _addresses(scope: Scope) -> tuple[str, ...]:
    """Return the address that the connection reached, as a Host field may name it."""
    if scope.get("server") is None:
        return ()
    address, port = scope["server"]
    host = f"[{address}]" if ":" in address else address
    return host, f"{host}:{port}"
