"""Send files of the pages: compressed, with scripts and connections of this origin only."""

from __future__ import annotations

import gzip
from functools import lru_cache

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
        "Vary": "Accept-Encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        content = _compressed(content)
    return Response(content, media_type=media_type, headers=headers)


@lru_cache(maxsize=32)
def _compressed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
