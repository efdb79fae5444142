"""Render errors as problem documents (RFC 9457), and describe them for OpenAPI."""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.exceptions import HTTPException
from starlette.responses import Response

from coordinator.errors import (
    AuthMissing,
    BodyTooLarge,
    Internal,
    Invalid,
    JsonMalformed,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    Refusal,
    StorageFull,
    Unavailable,
)
from coordinator.http.json_body import invalid
from coordinator.observability.logs import logger
from schemas.problems import MEDIA_TYPE, PREFIX
from schemas.wire.errors import BodyRefused

log = logger(__name__)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_DATABASE_FULL = (sqlite3.SQLITE_FULL, "53100")  # SQLite's code, and PostgreSQL's

_REFUSAL_BY_STATUS: dict[int, type[Refusal]] = {
    400: JsonMalformed,
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
}


def render(refused: Refusal) -> Response:
    document = {
        "type": f"{PREFIX}{refused.slug}",
        "title": refused.title,
        "status": refused.status,
        **({"detail": refused.detail} if refused.detail else {}),
        **refused.facts,
    }
    return Response(
        json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"),
        refused.status,
        refused.fields(),
        MEDIA_TYPE,
    )


def render_unexpected() -> tuple[Response, str]:
    """Return the response to an internal error, with the id of the incident in the log."""
    incident = secrets.token_hex(8)
    return render(Internal(incident=incident)), incident


def answers(*kinds: type[Refusal]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of these errors: `responses=answers(NotFound, RoundClosed)`."""
    described: dict[int | str, dict[str, Any]] = {}
    if AuthMissing in kinds and not any(issubclass(kind, RateLimited) for kind in kinds):
        kinds = (*kinds, RateLimited)  # an address with too many invalid bearer tokens
    for kind in kinds:
        line = f"`{kind.slug}`: {kind.title}"
        previous = described.get(kind.status)
        described[kind.status] = {"description": f"{previous['description']}; {line}" if previous else line}
    return described


def install(app: FastAPI) -> None:
    """Install handlers that render every error as a problem document, the framework's included."""
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(BodyRefused, _body_refused)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(RequestValidationError, _parameters)
    for kind in (OperationalError, InterfaceError, PoolExhausted):
        app.add_exception_handler(kind, _database_down)
    app.add_exception_handler(OSError, _disk_full)


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, Refusal):
        raise error
    return render(error)


async def _body_refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, BodyRefused):
        raise error
    document = {"type": f"{PREFIX}{error.slug}", "title": error.title, "status": error.status}
    return Response(json.dumps(document), error.status, media_type=MEDIA_TYPE)


async def _framework(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException) or error.status_code not in _REFUSAL_BY_STATUS:
        raise error
    answer = render(_REFUSAL_BY_STATUS[error.status_code]())
    answer.headers.update(error.headers or {})
    if error.status_code == MethodNotAllowed.status:
        answer.headers["Allow"] = _allowed(request) or answer.headers.get("Allow", "")
    return answer


def _allowed(request: Request) -> str:
    """List the methods of a path: the framework names only those of the first matching route."""
    template = getattr(request.scope.get("route"), "path", None)
    operations = request.app.openapi()["paths"].get(template, {})
    return ", ".join(sorted(method.upper() for method in operations))


async def _parameters(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = error.errors()
    # A malformed id names nothing that exists.
    if any(fault["loc"][0] == "path" for fault in faults):
        return render(NotFound())
    named = [{**fault, "loc": fault["loc"][1:]} for fault in faults]
    return render(invalid(named) if named else Invalid())


async def _disk_full(_: Request, error: Exception) -> Response:
    if not isinstance(error, OSError) or error.errno not in _NO_SPACE:
        raise error
    log.error("storage-full", error=os.strerror(error.errno))
    return render(StorageFull())


async def _database_down(_: Request, error: Exception) -> Response:
    driver_error = getattr(error, "orig", None)
    code = getattr(driver_error, "sqlite_errorcode", None) or getattr(driver_error, "sqlstate", None)
    if code in _DATABASE_FULL:
        log.error("storage-full", error=str(driver_error))
        return render(StorageFull())
    log.warning("database-unavailable", error=type(error).__name__, reason=_reason(driver_error))
    return render(Unavailable())


def _reason(driver_error: object) -> str | None:
    return getattr(driver_error, "sqlite_errorname", None) or getattr(driver_error, "sqlstate", None)
