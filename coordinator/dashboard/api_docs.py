"""Serve the OpenAPI document, and the page that shows it, which loads nothing from elsewhere.

Silos are often cut off from the internet; and where people type tokens, nobody else's script runs.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from coordinator.dashboard.policy import POLICY, answer

router = APIRouter(include_in_schema=False)

_STYLE, _SCRIPT = "swagger-ui.css", "swagger-ui-bundle.js"
_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The style sheet has its icons in itself."""

_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tessera: API</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<div id="api"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"""
_START = b"""SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null,
});
"""


@router.get("/openapi.json")
def document(request: Request) -> Response:
    """Serve the document; it is written once."""
    text: bytes | None = getattr(request.app.state, "openapi_text", None)
    if text is None:
        text = json.dumps(request.app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
        request.app.state.openapi_text = text
    return Response(text, media_type="application/json")


@router.get("/docs")
def page(request: Request) -> Response:
    """Serve the page."""
    return answer(request, _PAGE, "text/html", policy=_POLICY)


@router.get("/docs/start.js")
def start(request: Request) -> Response:
    """Serve what starts the page."""
    return answer(request, _START, "text/javascript", policy=_POLICY)


@router.get("/docs/swagger-ui.css")
def style(request: Request) -> Response:
    """Serve its style."""
    return answer(request, _packaged(_STYLE), "text/css", policy=_POLICY)


@router.get("/docs/swagger-ui-bundle.js")
def script(request: Request) -> Response:
    """Serve its script."""
    return answer(request, _packaged(_SCRIPT), "text/javascript", policy=_POLICY)


@cache
def _packaged(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()
