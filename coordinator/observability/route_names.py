"""Name the route of a request, for metrics, logs and traces."""

from __future__ import annotations

from starlette.types import Scope


def route_template(scope: Scope) -> str:
    """Return the route's template: paths are unbounded and contain ids."""
    route = scope.get("route")
    return str(getattr(route, "path_format", None) or getattr(route, "path", None) or "unknown")
