"""Serve the dashboard page and its files."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from coordinator.dashboard.policy import answer
from coordinator.errors import NotFound
from schemas.messages.recommendations import recommended
from schemas.strategies.registry import strategy_names

router = APIRouter(include_in_schema=False)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The modules that page.js imports.
_MODULES = (
    "actions",
    "api",
    "beside",
    "curves",
    "details",
    "dom",
    "experts",
    "relevance",
    "signin",
    "text",
    "views",
)
_SUGGESTIONS = "<!-- strategies -->"


@router.get("/")
def page(request: Request) -> Response:
    """Return the page, with the names of the installed strategies and what is recommended for each."""
    html = (files(__package__) / "page.html").read_text("utf-8")
    plans = {name: json.dumps(recommended(name, aligned=False)) for name in strategy_names()}
    options = "".join(
        f'<option value="{escape(name)}" data-plan="{escape(plan)}">' for name, plan in plans.items()
    )
    return answer(request, html.replace(_SUGGESTIONS, options).encode(), _TYPES["html"])


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
