"""Serve the page and its files. Knows no federation: whoever reads it brings a token for the API."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response

from coordinator.errors import NotFound

router = APIRouter(include_in_schema=False)

# The page may load its own script and style, and talk to its own origin; nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    "page.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@router.get("/")
def page(request: Request) -> Response:
    """Serve the page."""
    return _file(request, "page.html")


@router.get("/page.css")
def style(request: Request) -> Response:
    """Serve its style."""
    return _file(request, "page.css")


@router.get("/page.js")
def script(request: Request) -> Response:
    """Serve its script."""
    return _file(request, "page.js")


@router.get("/icon.svg")
def icon(request: Request) -> Response:
    """Serve its icon."""
    return _file(request, "icon.svg")


def _file(request: Request, name: str) -> Response:
    if not request.app.state.settings.dashboard:
        raise NotFound
    content = (files(__package__) / name).read_bytes()
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(content, media_type=_TYPES[name], headers=headers)
