"""Assemble the service: an ASGI application from settings."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from fastapi import FastAPI

from coordinator import health
from coordinator.alignment import anchors, transfer_test
from coordinator.alignment import routes as alignment
from coordinator.auth.last_seen import LastSeenWriter
from coordinator.auth.nonces import ReadNonces
from coordinator.auth.oidc import provider_of
from coordinator.auth.reserved_connections import ConnectionReserve
from coordinator.dashboard import api_docs
from coordinator.dashboard import routes as dashboard
from coordinator.db import migrate
from coordinator.db.engine import Database
from coordinator.db.group_commit import GroupCommit
from coordinator.db.single_process import only_replica
from coordinator.enrolment import key_rotation, person_tokens, sign_in
from coordinator.enrolment import routes as enrolment
from coordinator.enrolment.failure_delay import FailureDelays
from coordinator.experts import routes as experts
from coordinator.federations import clients, event_stream
from coordinator.federations import routes as federations
from coordinator.federations.event_fanout import Streams
from coordinator.http import openapi, problems
from coordinator.http.head_requests import HeadRequests
from coordinator.http.limits.body_deadline import BodyDeadline
from coordinator.http.limits.concurrency import KeyedLock
from coordinator.http.limits.poll_rate import PollRate
from coordinator.http.limits.request_target import TargetCheck
from coordinator.http.request_log import RequestLog
from coordinator.http.root_path import RootPath
from coordinator.joining import routes as aggregation
from coordinator.observability.metrics import Metrics
from coordinator.observability.tracing import (
    RequestTraces,
    provider_from_environment,
    trace_statements,
    tracer_of,
)
from coordinator.rounds import admin_routes, progress, reader_routes, reports
from coordinator.rounds import routes as rounds
from coordinator.rounds.long_poll import LongPolls
from coordinator.rounds.round_tracker import RoundTracker
from coordinator.secure_sum import readiness_routes
from coordinator.secure_sum import routes as secure_sum
from coordinator.settings import Settings
from coordinator.storage import server_key
from coordinator.storage.payload_moves import PayloadMover
from coordinator.updates import routes as updates
from coordinator.webhook import WebhookSender
from coordinator.weights import routes as weights
from coordinator.workers import Ticker

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

COMMITTERS = 2
"""Concurrent transactions that store updates of a round."""

UPDATES_PER_COMMIT = 16
"""Largest number of updates of a round in one transaction."""

BYTES_PER_COMMIT = 32 * 2**20
"""Largest size of the updates in one transaction that has more than one."""

UPDATE_WAIT_SECONDS = 20.0
"""Longest wait of an update for its transaction: it was received and decoded, and would be sent once more."""

# Separate threads: most wait for a commit of their updates, and must not block other requests.
_DELIVERERS = 24

# Of polls and the readiness probe, which only read: other requests may all wait for the write lock.
_POLLERS = 16

# Routers are matched in order, so the most frequent come first.
ROUTERS = (
    rounds.router,
    aggregation.router,
    weights.router,
    updates.router,
    readiness_routes.router,
    secure_sum.router,
    experts.router,
    health.router,
    enrolment.router,
    person_tokens.router,
    sign_in.router,
    key_rotation.router,
    federations.router,
    federations.strategies_router,
    clients.router,
    event_stream.router,
    progress.router,
    reader_routes.router,
    reports.router,
    admin_routes.router,
    admin_routes.clients_router,
    anchors.router,
    alignment.router,
    transfer_test.router,
    dashboard.router,
    api_docs.router,
)


def create_app(settings: Settings, *, traces: TracerProvider | None = None) -> FastAPI:
    """Build the application; it connects to its database at startup.

    `traces` receives its spans; by default they are exported if the settings say so.

    Raises:
        SettingsUnusable: traces are to be exported, and the extra `otel` is not installed.
    """
    if traces is None and settings.traces:
        traces = provider_from_environment()
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        title="Tessera",
        summary="Personalised federated fine-tuning across organisations and architectures",
        version=version("tessera-fl"),
        lifespan=_lifespan,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.settings = settings
    app.state.traces = traces
    app.state.metrics = Metrics()
    app.state.stopping = threading.Event()
    app.state.poll_rate = PollRate(settings.polls_per_second)
    app.state.me_rate = PollRate(settings.polls_per_second)
    app.state.sum_poll_rate = PollRate(settings.polls_per_second, burst=secure_sum.SUM_POLLS_AT_ONCE)
    app.state.identity_provider = provider_of(settings)
    app.state.progress_rate = PollRate(progress.PER_SECOND, burst=progress.BURST)
    app.state.reads = ReadNonces()
    app.state.locks = KeyedLock()
    app.state.group_commit = GroupCommit(
        max_leaders=COMMITTERS,
        max_batch=UPDATES_PER_COMMIT,
        max_bytes=BYTES_PER_COMMIT,
        max_wait_seconds=UPDATE_WAIT_SECONDS,
    )
    app.state.deliverers = anyio.CapacityLimiter(_DELIVERERS)
    app.state.pollers = anyio.CapacityLimiter(_POLLERS)
    app.state.last_seen = LastSeenWriter()
    app.state.failure_delays = FailureDelays()
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    openapi.install(app, settings.root_path)
    # The one that is added last runs first: traces and the log are outermost, the deadline of bodies
    # innermost.
    app.add_middleware(BodyDeadline, bytes_per_second=settings.upload_bytes_per_second)
    app.add_middleware(ConnectionReserve)
    app.add_middleware(TargetCheck, is_own_name=settings.goes_by)
    app.add_middleware(RootPath, root_path=settings.root_path)
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestLog, metrics=app.state.metrics, trusts=settings.trusts)
    if traces is not None:
        app.add_middleware(RequestTraces, tracer=tracer_of(traces))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    # Closed in reverse order: workers stop before the database closes.
    with ExitStack() as stack:
        metrics: Metrics = app.state.metrics
        traces: TracerProvider | None = app.state.traces
        tracer = tracer_of(traces)
        database = Database(
            settings.database_url,
            observe_write=metrics.write_seconds.observe,
            prepare_engine=partial(trace_statements, tracer=tracer) if traces is not None else None,
        )
        if traces is not None:
            stack.callback(traces.shutdown)
        stack.callback(database.close)
        stack.enter_context(only_replica(database))
        await to_thread.run_sync(migrate.prepare, database)
        long_polls = LongPolls(database, app.state.stopping, app.state.pollers)
        app.state.server_key = key = server_key.load(database, settings.signing_key)
        mover = PayloadMover(database, settings.payload_store, metrics) if settings.payload_store else None
        ticker = Ticker(
            database,
            lease_seconds=settings.lease_seconds,
            tick_seconds=settings.tick_seconds,
            block_bytes=settings.block_bytes,
            keep_rounds=settings.keep_rounds,
            mover=mover,
            key=key,
            metrics=metrics,
            moved=long_polls.notify,
            tracker=(
                RoundTracker(database, settings.trackers, settings.name) if settings.report_to else None
            ),
            tracer=tracer,
        )
        app.state.database = database
        app.state.long_polls = long_polls
        app.state.streams = streams = Streams(database, app.state.stopping)
        app.state.ticker = ticker
        app.state.mover = mover
        ticker.start()
        stack.callback(ticker.stop)
        if settings.webhook_url:
            sender = WebhookSender(
                database,
                url=settings.webhook_url,
                secret=settings.webhook_secret,
                key=key,
                stuck_seconds=settings.stuck_seconds,
                tick_seconds=settings.tick_seconds,
            )
            sender.start()
            stack.callback(sender.stop)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(long_polls.run)
            tasks.start_soon(streams.run)
            tasks.start_soon(app.state.last_seen.run, database)
            yield
            tasks.cancel_scope.cancel()
