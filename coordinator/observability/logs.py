"""Structured logs: who, which round, how long. Never a token, a tensor or a signature."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["json", "console"]


def configure(level: str, form: Format) -> None:
    """Write this process' logs to standard error, those of uvicorn and SQLAlchemy in the same form."""
    shared: list[Processor] = [
        _with_facts,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Local variables are left out of tracebacks: they may hold what must not be logged.
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
            structlog.stdlib.filter_by_level,  # what nobody reads is not put together either
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
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it speaks whenever a version is looked up


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Give the logger of a module: `log = logger(__name__)`, then `log.info("round-opened", round=3)`."""
    bound: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return bound


@contextmanager
def scope(**facts: str | int) -> Iterator[None]:
    """Add facts (round, federation) to every line that is logged inside, in whichever thread."""
    token = _facts.set({**(_facts.get() or {}), **facts})
    try:
        yield
    finally:
        _facts.reset(token)


def bind(**facts: str | int) -> None:
    """Add facts that are known only now (the client) to the scope around."""
    current = _facts.get()
    if current is not None:
        current.update(facts)


# One dictionary per scope, shared by the threads that work for it: a thread of the pool has a copy of the
# context, and what it sets there would be lost to the others.
_facts: ContextVar[dict[str, str | int] | None] = ContextVar("facts", default=None)


def _with_facts(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**(_facts.get() or {}), **event}
