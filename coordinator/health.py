"""The routes that need no identity: is it alive, is it ready, who is it, what has it counted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import PlainTextResponse, Response

from coordinator.auth.authentication import Person, authenticated
from coordinator.db import migrate
from coordinator.db.engine import database_time
from coordinator.errors import Forbidden, Invalid, Unavailable
from coordinator.federations.store import rounds_by_state
from coordinator.http.dependencies import TheDatabase, TheMetrics, TheServerKey, TheSettings, settings_of
from coordinator.http.problems import answers
from coordinator.observability.metrics import CONTENT_TYPE
from schemas import PROTOCOL_VERSION
from schemas.messages.tokens import Hello

router = APIRouter(tags=["about"])


@router.get("/healthz", response_class=PlainTextResponse)
async def is_alive() -> str:
    """Say that the process answers."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse, responses=answers(Unavailable))
def is_ready(database: TheDatabase) -> str:
    """Say whether the database answers and its migrations are current."""
    if not migrate.is_current(database):
        raise Unavailable("the database is not migrated: run `tessera migrate`")
    return "ready\n"


@router.get("/v1/hello", responses=answers(Invalid))
def hello(
    database: TheDatabase,
    settings: TheSettings,
    key: TheServerKey,
    challenge: Annotated[
        str | None,
        Query(pattern=r"^[A-Za-z0-9_-]{16,64}$", description="What the signed answer repeats."),
    ] = None,
) -> Hello:
    """Introduce this coordinator, signed with the key whose thumbprint every enrolment token has."""
    with database.autocommit() as asked:
        now = database_time(asked)
    said = Hello(
        name=settings.name,
        protocol_version=PROTOCOL_VERSION,
        server_time=now,
        signing_key=key.public,
        nonce=key.nonce(now),
        challenge=challenge,
        signature="",
    )
    signature = key.sign("tessera-hello-v1", said.model_dump(mode="json"))
    return said.model_copy(update={"signature": signature})


def _may_see_metrics(request: Request) -> None:
    if not settings_of(request).public_metrics and not isinstance(authenticated(request), Person):
        raise Forbidden(needs="auditor")


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(_may_see_metrics)])
def metrics(database: TheDatabase, counted: TheMetrics, settings: TheSettings) -> Response:
    """Return this process' counters, and the rounds of all, in Prometheus' text format.

    Where anybody may read them, they are up to a second old.
    """
    text = counted.recent() if settings.public_metrics else None
    if text is None:
        with database.read() as session:
            rounds = rounds_by_state(session)
        text = counted.render(rounds)
    return Response(text, media_type=CONTENT_TYPE)
