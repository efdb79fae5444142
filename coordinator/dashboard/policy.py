"""Content security policy of the pages: scripts and connections of this origin only."""

from __future__ import annotations

from fastapi import Request, Response

from coordinator.errors import NotFound

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def answer(request: Request, content: bytes, media_type: str, *, policy: str = POLICY) -> Response:
    """Return a file of a page.

    Raises:
        NotFound: the dashboard is disabled.
    """
    if not request.app.state.settings.dashboard:
        raise NotFound
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(content, media_type=media_type, headers=headers)
