"""Serve the OpenAPI document and its page, without scripts from other servers."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from coordinator.dashboard.policy import POLICY, answer

router = APIRouter(include_in_schema=False)

_STYLE, _SCRIPT = "swagger-ui.css", "swagger-ui-bundle.js"
# The style sheet embeds its icons.
_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")

_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tessera: API</title>
<link rel="icon" href="icon.svg">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="api"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
_START = b"""SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null,
});
"""


@router.get("/openapi.json")
def document(request: Request) -> Response:
    text: bytes | None = getattr(request.app.state, "openapi_text", None)
    if text is None:
        text = json.dumps(request.app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
        request.app.state.openapi_text = text
    return Response(text, media_type="application/json")


@router.get("/docs")
def page(request: Request) -> Response:
    return answer(request, _PAGE, "text/html", policy=_POLICY)


@router.get("/docs/start.js")
def start(request: Request) -> Response:
    return answer(request, _START, "text/javascript", policy=_POLICY)


@router.get("/docs/swagger-ui.css")
def style(request: Request) -> Response:
    return answer(request, _packaged(_STYLE), "text/css", policy=_POLICY)


@router.get("/docs/swagger-ui-bundle.js")
def script(request: Request) -> Response:
    return answer(request, _packaged(_SCRIPT), "text/javascript", policy=_POLICY)


@cache
def _packaged(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()
