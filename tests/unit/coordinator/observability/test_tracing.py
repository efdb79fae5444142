"""Spans of a served coordinator, kept in memory by OpenTelemetry's exporter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from client_agent.transport.client import CoordinatorApi
from coordinator.app import create_app
from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable
from coordinator.observability.tracing import provider_from_environment, trace_statements
from coordinator.settings import Settings
from tests.scene.coordinator import ADMIN_TOKEN, Served, start
from tests.scene.rounds import deliver, plan, running, values
from tests.scene.waiting import wait_until
from tests.unit.coordinator.webhook_receiver import receiving

SECRET_NAME = "a-name-that-is-a-secret"


@dataclass
class Traced:
    """A coordinator, and the spans that it has ended."""

    served: Served
    exporter: InMemorySpanExporter

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def single(self, name: str) -> ReadableSpan:
        wait_until(lambda: self.named(name), event=name)
        return self.named(name)[-1]


def in_memory() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@pytest.fixture(scope="module")
def traced(fresh_database: Callable[[str], str]) -> Iterator[Traced]:
    provider, exporter = in_memory()
    served = start(fresh_database("sqlite"), traces=provider, tick_seconds=0.05)
    try:
        yield Traced(served, exporter)
    finally:
        served.stop()


def children(traced: Traced, parent: ReadableSpan) -> list[ReadableSpan]:
    assert parent.context is not None
    return [s for s in traced.spans if s.parent is not None and s.parent.span_id == parent.context.span_id]


def test_a_request_is_a_span_with_its_statements(traced: Traced) -> None:
    traced.served.federation()
    span = traced.single("POST /v1/federations")
    assert span.kind is SpanKind.SERVER
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/federations",
        "http.response.status_code": 201,
    }
    statements = children(traced, span)
    texts = [str((statement.attributes or {})["db.query.text"]) for statement in statements]
    assert any(text.startswith("INSERT INTO federations") for text in texts)
    assert {statement.kind for statement in statements} == {SpanKind.CLIENT}
    assert {(statement.attributes or {})["db.system.name"] for statement in statements} == {"sqlite"}


def test_an_aggregation_is_a_span_with_its_statements(traced: Traced) -> None:
    federation_id, silos = running(traced.served, **plan(rounds={"total": 1}))
    for silo in silos:
        deliver(silo, 1, values(1.0))
    wait_until(lambda: traced.served.round_state(federation_id, 1) == "published")
    wait_until(lambda: traced.named("aggregate round"))
    span = traced.named("aggregate round")[-1]
    assert dict(span.attributes or {}) == {"tessera.federation": federation_id, "tessera.round": 1}
    assert children(traced, span)


def test_an_agents_trace_continues_in_the_coordinator(traced: Traced) -> None:
    provider, _ = in_memory()
    with CoordinatorApi(traced.served.url, key=Ed25519PrivateKey.generate(), deadline_seconds=10) as api:
        with provider.get_tracer("an agent").start_as_current_span("round 3") as agent_span:
            api.hello()
        context = agent_span.get_span_context()
        (span,) = (
            s for s in traced.named("GET /v1/hello") if s.context and s.context.trace_id == context.trace_id
        )
        assert span.parent is not None
        assert span.parent.span_id == context.span_id
        before = len(traced.named("GET /v1/hello"))
        api.hello()
    alone = traced.named("GET /v1/hello")
    assert len(alone) == before + 1
    assert alone[-1].parent is None


def test_spans_contain_no_secrets_or_values(traced: Traced) -> None:
    federation_id = traced.served.federation(name=SECRET_NAME)
    token = traced.served.enrolment_token(federation_id, SECRET_NAME)
    traced.served.http("tsr_adm_wrong").get("/v1/federations", params={"after": SECRET_NAME})
    traced.served.http().post("/v1/enrolments", json={"token": token, "name": SECRET_NAME})
    with pytest.raises(httpx.HTTPStatusError):
        traced.served.admin.post("/v1/federations", json={"name": SECRET_NAME}).raise_for_status()
    traced.single("POST /v1/enrolments")
    written = "".join(span.to_json() for span in traced.spans)
    assert "/v1/enrolments" in written
    for secret in (SECRET_NAME, token, ADMIN_TOKEN, "tsr_adm_wrong", federation_id + "/"):
        assert secret not in written


def test_probes_and_idle_workers_create_no_spans(traced: Traced) -> None:
    traced.served.admin.get("/healthz")
    traced.served.admin.get("/readyz")
    traced.served.admin.get("/metrics")
    roots = {span.name for span in traced.spans if span.parent is None}
    assert not [name for name in roots if "healthz" in name or "readyz" in name or "metrics" in name]
    assert not roots & {"SELECT", "BEGIN", "UPDATE"}


def test_a_failed_statement_is_marked_without_its_message(database: Database) -> None:
    provider, exporter = in_memory()
    tracer = provider.get_tracer("test")
    trace_statements(database.engine, tracer)
    insert = text("INSERT INTO server_identity (id, public_key, created_at) VALUES (1, :key, :now)")
    row = {"key": SECRET_NAME, "now": "2026-11-27 00:00:00.000000"}

    def fails() -> None:
        with tracer.start_as_current_span("twice", record_exception=False), database.write() as session:
            for _ in range(2):
                session.execute(insert, row)

    with pytest.raises(IntegrityError):
        fails()
    failed = [span for span in exporter.get_finished_spans() if (span.attributes or {}).get("error.type")]
    assert [span.status.status_code for span in failed] == [StatusCode.ERROR]
    assert all(SECRET_NAME not in span.to_json() for span in failed)
    with tracer.start_as_current_span("after"), database.write() as session:
        session.execute(text("SELECT 1"))
    (last,) = (s for s in exporter.get_finished_spans() if s.attributes and "SELECT 1" in str(s.attributes))
    assert last.parent is not None


def test_disabled_traces_install_no_listeners(coordinator: Served) -> None:
    app = create_app(Settings(_env_file=None))  # type: ignore[call-arg]
    assert app.state.traces is None
    assert "RequestTraces" not in {middleware.cls.__name__ for middleware in app.user_middleware}
    engine = coordinator.database.engine
    assert not list(engine.dispatch.before_cursor_execute)


def test_the_standard_variables_configure_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    provider = provider_from_environment()
    assert provider.resource.attributes["service.name"] == "tessera-coordinator"
    assert not provider.get_tracer("test").start_span("x").is_recording()
    provider.shutdown()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "hub")
    provider = provider_from_environment()
    assert provider.resource.attributes["service.name"] == "hub"
    provider.shutdown()


def test_spans_are_exported_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        provider = provider_from_environment()
        provider.get_tracer("test").start_span("GET /v1/hello").end()
        assert provider.force_flush()
        provider.shutdown()
    ((headers, body),) = receiver.received
    assert headers["content-type"] == "application/x-protobuf"
    assert b"GET /v1/hello" in body
    assert b"tessera-coordinator" in body


def test_traces_without_their_extra_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsUnusable, match=r"pip install '.\[coordinator,otel\]'"):
        create_app(Settings(_env_file=None, traces=True))  # type: ignore[call-arg]
