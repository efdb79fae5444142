"""Structured logs with request, round and client. Tokens, tensors and signatures are never logged."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import structlog
from starlette.types import Scope
from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["json", "console"]


def configure(level: str, form: Format) -> None:
    """Log to standard error, with the logs of uvicorn and SQLAlchemy in the same format."""
    shared: list[Processor] = [
        _with_facts,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Tracebacks have no local variables, which may contain secrets.
    if form == "json":
        shared.append(
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            )
        )
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,  # skip rendering of filtered events
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs at every look-up of a version


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module: `log = logger(__name__)`, `log.info("round-opened", round=3)`."""
    bound: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return bound


@contextmanager
def scope(**facts: str | int) -> Iterator[None]:
    """Add facts (round, federation) to every line logged inside, in any thread."""
    token = _facts.set({**(_facts.get() or {}), **facts})
    try:
        yield
    finally:
        _facts.reset(token)


def bind(**facts: str | int) -> None:
    """Add facts to the enclosing scope."""
    current = _facts.get()
    if current is not None:
        current.update(facts)


# One dictionary per scope, shared by its threads: a thread of the pool has a copy of the context, and
# values that it sets there would be lost.
_facts: ContextVar[dict[str, str | int] | None] = ContextVar("facts", default=None)


def _with_facts(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**(_facts.get() or {}), **event}


def route_template(scope: Scope) -> str:
    """Return the route's template: paths are unbounded and contain ids."""
    route = scope.get("route")
    return str(getattr(route, "path_format", None) or getattr(route, "path", None) or "unknown")
