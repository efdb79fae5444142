"""Serve the dashboard page and its files."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response

from coordinator.dashboard.policy import answer

router = APIRouter(include_in_schema=False)

_TYPES = {
    "page.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@router.get("/")
def page(request: Request) -> Response:
    return _file(request, "page.html")


@router.get("/page.css")
def style(request: Request) -> Response:
    return _file(request, "page.css")


@router.get("/page.js")
def script(request: Request) -> Response:
    return _file(request, "page.js")


@router.get("/icon.svg")
def icon(request: Request) -> Response:
    return _file(request, "icon.svg")


def _file(request: Request, name: str) -> Response:
    return answer(request, (files(__package__) / name).read_bytes(), _TYPES[name])
