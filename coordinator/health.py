"""Routes without authentication: liveness, readiness, identity and metrics."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import PlainTextResponse, Response

from coordinator.auth.authentication import Person, authenticated
from coordinator.db import migrate
from coordinator.db.engine import database_time, stored_bytes
from coordinator.errors import Forbidden, Invalid, Unavailable
from coordinator.experts.views import experts_by_status
from coordinator.federations.store import rounds_by_state
from coordinator.http.dependencies import TheDatabase, TheMetrics, TheServerKey, TheSettings, settings_of
from coordinator.http.problems import answers
from coordinator.observability.metrics import CONTENT_TYPE, StoredFacts
from coordinator.rounds.stuck_rounds import stuck_rounds
from coordinator.storage.payload_moves import PayloadMover
from schemas import PROTOCOL_VERSION
from schemas.messages.secure_sum import CAPABILITY
from schemas.messages.tokens import Hello

router = APIRouter(tags=["about"])


async def _mover(request: Request) -> PayloadMover | None:
    mover: PayloadMover | None = request.app.state.mover
    return mover


_TheMover = Annotated[PayloadMover | None, Depends(_mover)]


@router.get("/healthz", response_class=PlainTextResponse)
async def is_alive() -> str:
    """Return ok while the process answers."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse, responses=answers(Unavailable))
async def is_ready(request: Request, database: TheDatabase, mover: _TheMover) -> str:
    """Return ready if the database answers and its migrations are current.

    A second line reports a payload store that does not answer or that another database claims. It makes no
    replica unready: all of them would be at once, while open rounds need only the database.
    """
    pollers = request.app.state.pollers
    if not await to_thread.run_sync(migrate.is_current, database, limiter=pollers):
        raise Unavailable(await to_thread.run_sync(migrate.outdated, database, limiter=pollers))
    # What the last pass found: a probe must not wait for the store.
    fault = None if mover is None else mover.fault
    return "ready\n" if fault is None else f"ready\n{fault}\n"


@router.get("/v1/hello", responses=answers(Invalid))
def hello(
    request: Request,
    database: TheDatabase,
    settings: TheSettings,
    key: TheServerKey,
    challenge: Annotated[
        str | None,
        Query(pattern=r"^[A-Za-z0-9_-]{16,64}$", description="Challenge that the signed response repeats."),
    ] = None,
) -> Hello:
    """Return the coordinator's identity, signed with the key whose thumbprint enrolment tokens pin."""
    with database.autocommit() as connection:
        now = database_time(connection)
    unsigned = Hello(
        name=settings.name,
        protocol_version=PROTOCOL_VERSION,
        capabilities=(CAPABILITY,),
        server_time=now,
        signing_key=key.public,
        nonce=key.nonce(now),
        challenge=challenge,
        root_path=settings.root_path,
        authority=request.headers["host"],
        signature="",
    )
    signature = key.sign("tessera-hello-v1", unsigned.model_dump(mode="json"))
    return unsigned.model_copy(update={"signature": signature})


def _may_see_metrics(request: Request) -> None:
    if not settings_of(request).public_metrics and not isinstance(authenticated(request), Person):
        raise Forbidden(needs="auditor")


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(_may_see_metrics)])
def metrics(database: TheDatabase, process_metrics: TheMetrics, settings: TheSettings) -> Response:
    """Return the metrics of this process, and gauges of the database, in Prometheus' text format.

    Public metrics are up to a second old.
    """
    text = process_metrics.recent() if settings.public_metrics else None
    if text is None:
        with database.read() as session:
            stuck = stuck_rounds(session, database_time(session), settings.stuck_seconds)
            stored = StoredFacts(
                rounds=rounds_by_state(session),
                stuck=Counter(row.state for row in stuck),
                experts=experts_by_status(session),
                database_bytes=stored_bytes(session),
            )
        text = process_metrics.render(stored)
    return Response(text, media_type=CONTENT_TYPE)
