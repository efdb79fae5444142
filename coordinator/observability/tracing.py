"""Traces with OpenTelemetry: spans of requests, of their statements, and of work on rounds.

Only names, ids of the route, statuses and statements with placeholders are in spans. The instrumentations of
OpenTelemetry also record query strings and the messages of exceptions, which may contain values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer, get_current_span
from sqlalchemy import Connection, Engine, event
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.errors import SettingsUnusable
from coordinator.observability.logs import route_template

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NO_TRACER: Tracer = NoOpTracer()
"""A tracer without effect."""

_NAME = "tessera"
_SERVICE = "tessera-coordinator"
_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
_SPANS = "tessera spans"
_SERVER_ERROR = 500


def provider_from_environment() -> TracerProvider:
    """Return a provider that exports as the OTEL_* variables say.

    Raises:
        SettingsUnusable: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsUnusable(
            "TESSERA_TRACES: OpenTelemetry's SDK is not installed; run: pip install '.[coordinator,otel]'"
        ) from error
    is_named = os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(resource=Resource.create({} if is_named else {SERVICE_NAME: _SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def tracer_of(provider: TracerProvider | None) -> Tracer:
    return provider.get_tracer(_NAME) if provider is not None else NO_TRACER


def begin_span(
    tracer: Tracer,
    name: str,
    attributes: Mapping[str, str | int],
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> AbstractContextManager[Span]:
    """Begin a span around a block; an exception ends it without its message, which may contain values."""
    return tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    )


class RequestTraces:
    """ASGI middleware: one span per request, a child of the caller's if it sent `traceparent`."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        method: str = scope["method"]
        parent, facts = extract(Headers(scope=scope)), {"http.request.method": method}
        with begin_span(self._tracer, method, facts, parent=parent, kind=SpanKind.SERVER) as span:

            async def record(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _name(span, method, scope, message["status"])
                await send(message)

            await self._app(scope, receive, record)


def _name(span: Span, method: str, scope: Scope, status: int) -> None:
    route = route_template(scope)
    span.update_name(f"{method} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= _SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def trace_statements(engine: Engine, tracer: Tracer) -> None:
    """Make a span of each statement that an engine executes within another span.

    The workers look for work all the time; their statements are spans only where they found some.
    """

    def begin(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if not get_current_span().is_recording():
            return
        operation = statement.lstrip().partition(" ")[0].upper()
        attributes = {
            "db.system.name": engine.dialect.name,
            "db.operation.name": operation,
            "db.query.text": statement,
        }
        span = tracer.start_span(operation, kind=SpanKind.CLIENT, attributes=attributes)
        connection.info.setdefault(_SPANS, []).append(span)

    def end(connection: Connection, *_: Any) -> None:
        if spans := connection.info.get(_SPANS):
            spans.pop().end()

    def fail(context: Any) -> None:
        if context.connection is not None and (spans := context.connection.info.get(_SPANS)):
            span: Span = spans.pop()
            # The message may contain values; its type does not.
            span.set_attribute("error.type", type(context.original_exception).__name__)
            span.set_status(Status(StatusCode.ERROR))
            span.end()

    event.listen(engine, "before_cursor_execute", begin)
    event.listen(engine, "after_cursor_execute", end)
    event.listen(engine, "handle_error", fail)
