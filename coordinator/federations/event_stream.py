"""Stream the events of a federation (server-sent events); a stream ends after minutes and resumes with
Last-Event-ID.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.auth.permissions import AsReader
from coordinator.errors import AuthMissing, Busy, NotFound, TooManyStreams
from coordinator.federations import store
from coordinator.federations.event_fanout import PAGE, Follower, Streams, streams_of
from coordinator.http.dependencies import TheDatabase
from coordinator.http.limits.connections import IS_RESERVED
from coordinator.http.params import FederationId
from coordinator.http.problems import answers
from coordinator.storage import event_log

router = APIRouter(tags=["federations"])

HEARTBEAT_SECONDS = 15.0
"""Longest silence of a stream, after which a comment is sent."""

LONGEST_SECONDS = 600.0
"""Longest duration of a stream: one whose reader vanished does not stay open."""


def _starting_point(
    database: TheDatabase,
    federation_id: FederationId,
    _: AsReader,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern=r"^[0-9]{1,15}$",
            description="Resume after this event number; without it, only new events are sent.",
        ),
    ] = None,
) -> int:
    with database.read() as session:
        store.federation(session, federation_id)
        return int(last_event_id) if last_event_id is not None else event_log.last(session, federation_id)


@router.get(
    "/v1/federations/{fid}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`event: round | client | alignment | sum | expert`, `id` its number, `data` JSON",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **answers(AuthMissing, NotFound, TooManyStreams, Busy),
    },
)
async def follow(
    caller: AsReader,
    federation_id: FederationId,
    request: Request,
    number: Annotated[int, Depends(_starting_point)],
) -> StreamingResponse:
    """Stream events: all of them for people; for a client, all but those of other clients.

    Each change of a round's state is an event. Joins, updates and scores of a round are combined into one
    event within about half a second; these are hints and may be missing, since each round event shows all
    counts.

    The stream ends when its credential is revoked or expires, and after ten minutes; resume it with
    Last-Event-ID. A caller may have four streams open at once.
    """
    if getattr(request.state, IS_RESERVED, False):
        raise Busy
    streams = streams_of(request)
    return _EventResponse(streams, streams.begin(federation_id, caller, number))


class _EventResponse(StreamingResponse):
    """A streaming response that unregisters its stream, however it ends."""

    def __init__(self, streams: Streams, follower: Follower) -> None:
        super().__init__(
            _stream(streams, follower),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._streams, self._follower = streams, follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.end(self._follower)


async def _stream(streams: Streams, follower: Follower) -> AsyncIterator[str]:
    # The number lets a quiet stream resume without missing events.
    yield f"retry: 2000\nid: {follower.number}\n\n"
    ends_at = anyio.current_time() + LONGEST_SECONDS
    is_behind = True
    while not follower.is_over:
        events = await streams.catch_up(follower) if is_behind else streams.recent(follower)
        is_behind = events is None or len(events) == PAGE
        for event in events or ():
            data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
            yield f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"
        remaining = ends_at - anyio.current_time()
        if remaining <= 0:
            return
        if is_behind:
            continue
        with anyio.move_on_after(min(HEARTBEAT_SECONDS, remaining)) as waited:
            await follower.has_events.wait()
        follower.has_events.clear()
        # Proxies close connections on which nothing is sent.
        if waited.cancelled_caught:
            yield ": still here\n\n"
