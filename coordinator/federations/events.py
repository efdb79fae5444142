"""The stream of a federation's events (server-sent events), resumable where it broke off.

Waiting costs no thread and no transaction: between two looks at the database there is only a timer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import StreamingResponse

from coordinator import events
from coordinator.database import Database
from coordinator.dependencies import TheDatabase
from coordinator.enrolment.auth import AsReader
from coordinator.enrolment.recognition import Member, Person, still_counts
from coordinator.errors import AuthMissing, CredentialInvalid, KeyRevoked, NotFound
from coordinator.federations import store
from coordinator.paths import FederationId
from coordinator.problems import answers

router = APIRouter(tags=["federations"])

_LOOK_SECONDS = 0.5
_HEARTBEAT_SECONDS = 15.0
_PAGE = 100


def _starting_point(
    database: TheDatabase,
    fid: FederationId,
    _: AsReader,
    last_event_id: Annotated[
        str | None,
        Header(pattern=r"^[0-9]{1,15}$", description="Resume after this event; without it only new ones."),
    ] = None,
) -> int:
    with database.read() as session:
        store.federation(session, fid)
        return int(last_event_id) if last_event_id is not None else events.last(session, fid)


@router.get(
    "/v1/federations/{fid}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`event: round | client | alignment`, `id` its number, `data` JSON",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **answers(AuthMissing, NotFound),
    },
)
async def follow(
    caller: AsReader,
    fid: FederationId,
    request: Request,
    database: TheDatabase,
    number: Annotated[int, Depends(_starting_point)],
) -> StreamingResponse:
    """Follow what happens: all of it for people; for a client, rounds, alignment and what is its own.

    A round's change of state is an event of its own. Who joins, delivers or sends scores is told together,
    within half a second or so; that is a hint and may be missing: each event of a round shows all it counts.

    The stream ends with what opened it: a token, a key that was replaced and whose overlap is over.
    """
    return StreamingResponse(
        _stream(database, request.app.state.stopping, fid, number, caller),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(
    database: Database, stopping: threading.Event, fid: str, number: int, caller: Person | Member
) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    quiet = 0.0
    while not stopping.is_set():
        found = await to_thread.run_sync(_next, database, fid, number, caller)
        if found is None:
            return
        for event in found:
            number = event.number
            data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
            yield f"id: {number}\nevent: {event.kind}\ndata: {data}\n\n"
        quiet = 0.0 if found else quiet + _LOOK_SECONDS
        if quiet >= _HEARTBEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        if len(found) < _PAGE:
            await anyio.sleep(_LOOK_SECONDS)


def _next(database: Database, fid: str, number: int, caller: Person | Member) -> list[events.Event] | None:
    """Give the next events; None ends the stream of a caller who would not be let in any more."""
    with database.read() as session:
        try:
            still_counts(session, caller)
        except (KeyRevoked, CredentialInvalid):
            return None
        seen_by = caller.client_id if isinstance(caller, Member) else None
        return events.since(session, fid, number, seen_by=seen_by, limit=_PAGE)
