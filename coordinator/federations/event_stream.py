"""The stream of a federation's events (server-sent events), resumable where it broke off.

Waiting costs no thread and no transaction. A stream ends after some minutes, so that one whose reader is gone
without a word does not stay; it is resumed with Last-Event-ID.
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
"""How long a stream is silent at most: a comment shows that it is there."""

LONGEST_SECONDS = 600.0
"""How long a stream lasts at most."""


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
        return int(last_event_id) if last_event_id is not None else event_log.last(session, fid)


@router.get(
    "/v1/federations/{fid}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`event: round | client | alignment`, `id` its number, `data` JSON",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **answers(AuthMissing, NotFound, TooManyStreams, Busy),
    },
)
async def follow(
    caller: AsReader,
    fid: FederationId,
    request: Request,
    number: Annotated[int, Depends(_starting_point)],
) -> StreamingResponse:
    """Follow what happens: all of it for people; for a client, rounds, alignment and what is its own.

    A round's change of state is an event of its own. Who joins, delivers or sends scores is told together,
    within half a second or so; that is a hint and may be missing: each event of a round shows all it counts.

    The stream ends with what opened it: a token, a key that was replaced and whose overlap is over. It also
    ends after ten minutes: resume it with Last-Event-ID. A caller may follow four streams at once.
    """
    if getattr(request.state, IS_RESERVED, False):
        raise Busy
    streams = streams_of(request)
    return _Followed(streams, streams.begin(fid, caller, number))


class _Followed(StreamingResponse):
    """An answer that goes on until its stream ends; however it ends, the stream no longer counts."""

    def __init__(self, streams: Streams, follower: Follower) -> None:
        super().__init__(
            _stream(streams, follower),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._streams, self._follower = streams, follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.end(self._follower)


async def _stream(streams: Streams, follower: Follower) -> AsyncIterator[str]:
    # The number lets a stream that stayed quiet be resumed without missing what happened in between.
    yield f"retry: 2000\nid: {follower.number}\n\n"
    ends_at = anyio.current_time() + LONGEST_SECONDS
    is_behind = True
    while not follower.is_over:
        found = await streams.catch_up(follower) if is_behind else streams.recent(follower)
        is_behind = found is None or len(found) == PAGE
        for event in found or ():
            data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
            yield f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"
        left = ends_at - anyio.current_time()
        if left <= 0:
            return
        if is_behind:
            continue
        with anyio.move_on_after(min(HEARTBEAT_SECONDS, left)) as waited:
            await follower.news.wait()
        follower.news.clear()
        if waited.cancelled_caught:
            yield ": still here\n\n"
