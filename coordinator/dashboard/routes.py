"""Serve the dashboard page and its files."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from coordinator.dashboard.policy import answer
from coordinator.errors import NotFound
from coordinator.http.dependencies import settings_of

router = APIRouter(include_in_schema=False)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The modules that page.js imports.
_MODULES = (
    "actions",
    "api",
    "audit",
    "beside",
    "create",
    "curves",
    "details",
    "dialog",
    "dom",
    "experts",
    "federations",
    "plan",
    "relevance",
    "signin",
    "text",
    "views",
)
_VERSION = "<!-- version -->"
_DOCUMENTATION = "<!-- documentation -->"


@router.get("/")
def page(request: Request) -> Response:
    """Return the page, with the version and a link to the documentation in its footer."""
    html = (files(__package__) / "page.html").read_text("utf-8")
    url = settings_of(request).documentation_url
    link = f' · <a href="{escape(url)}" rel="noreferrer">Documentation</a>' if url else ""
    html = html.replace(_VERSION, escape(request.app.version)).replace(_DOCUMENTATION, link)
    return answer(request, html.encode(), _TYPES["html"])


@router.get("/page.css")
def style(request: Request) -> Response:
    return _file(request, "page.css")


@router.get("/page.js")
def script(request: Request) -> Response:
    return _file(request, "page.js")


@router.get("/page.{module}.js")
def script_module(request: Request, module: str) -> Response:
    # A list and not a look into the folder: a name in a URL must not select files.
    if module not in _MODULES:
        raise NotFound
    return _file(request, f"page.{module}.js")


@router.get("/icon.svg")
def icon(request: Request) -> Response:
    return _file(request, "icon.svg")


def _file(request: Request, name: str) -> Response:
    return answer(request, (files(__package__) / name).read_bytes(), _TYPES[name.rpartition(".")[2]])
