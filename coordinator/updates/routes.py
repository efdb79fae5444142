"""Routes that receive a client's update, and serve its stored adapter state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from coordinator.auth.authentication import Member, still_counts
from coordinator.auth.permissions import AsMember, DownloadingReader
from coordinator.errors import (
    AuthMissing,
    BaseMismatch,
    BodyTooLarge,
    Busy,
    ContentEncodingRefused,
    DigestMismatch,
    DigestMissing,
    Forbidden,
    MediaTypeRefused,
    MetadataRefused,
    NormExceeded,
    NotFound,
    NotJoined,
    RateLimited,
    ReferenceMismatch,
    Refusal,
    RequestTimeout,
    RoundClosed,
    SecureSumRequired,
    SignatureRefused,
    StorageFull,
    UploadConflict,
)
from coordinator.http.dependencies import TheDatabase, TheMetrics, database_of, metrics_of
from coordinator.http.downloads import stream
from coordinator.http.limits.concurrency import locks_of, require_space
from coordinator.http.params import ClientId, FederationId, RoundNumber
from coordinator.http.problems import answers
from coordinator.http.uploads import ReceivedBody, receive
from coordinator.observability.logs import bind, logger
from coordinator.rounds.delta_reference import layout_of
from coordinator.rounds.notifications import Notify, Wake
from coordinator.rounds.participations import count_download
from coordinator.storage import audit_log
from coordinator.updates import store
from coordinator.updates.ingest import ExpectedUpdate, ingest_update, load_expected
from schemas.maths.adapter import size as values_of
from schemas.messages.updates import AdapterStateManifest, Receipt
from schemas.wire.envelope import MEDIA_TYPE, head
from schemas.wire.errors import BodyRefused

router = APIRouter(prefix="/v1/federations/{fid}", tags=["updates"])
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class _ReceivedUpdate:
    expected: ExpectedUpdate
    body: ReceivedBody


def _expected(member: AsMember, n: RoundNumber, request: Request) -> ExpectedUpdate:
    """Load the facts of the update once the client is authenticated, before its body is read.

    Raises:
        SecureSumRequired: the federation must not see updates.
    """
    expected = load_expected(database_of(request), member, n)
    if expected.context.plan.privacy.secure_sum is not None:
        metrics_of(request).updates_refused.labels(SecureSumRequired.slug).inc()
        raise SecureSumRequired
    return expected


# Each mention of a dependency is resolved anew, with its own dependencies, so these two are mentioned once.
async def _received(
    request: Request, expected: Annotated[ExpectedUpdate, Depends(_expected)]
) -> AsyncIterator[_ReceivedUpdate]:
    """Receive an update, one at a time per client; count refusals, those of the route included."""
    try:
        require_space(request)
        async with (
            locks_of(request).hold(("update", expected.member.client_id)),
            receive(request, max_bytes=expected.max_bytes, media_types={MEDIA_TYPE}) as body,
        ):
            yield _ReceivedUpdate(expected, body)
    except (Refusal, BodyRefused) as refused:
        metrics_of(request).updates_refused.labels(refused.slug).inc()
        log.info("update-refused", reason=refused.slug)
        raise


@router.put(
    "/rounds/{n}/update",
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: {}}}},
    responses={
        200: {"model": Receipt, "description": "The same bytes were accepted before"},
        **answers(AuthMissing, NotFound, DigestMissing, DigestMismatch, MediaTypeRefused, Busy),
        **answers(ContentEncodingRefused, BodyTooLarge, RoundClosed, NotJoined, UploadConflict),
        **answers(BaseMismatch, ReferenceMismatch, SecureSumRequired),
        **answers(NormExceeded, SignatureRefused, MetadataRefused, RequestTimeout, RateLimited, StorageFull),
    },
)
async def put_update(
    received: Annotated[_ReceivedUpdate, Depends(_received, scope="function")],
    request: Request,
    wake: Wake,
    notify: Notify,
    response: Response,
) -> Receipt:
    """Store a client's update: adapter and signature. The same bytes return 200 and the same receipt."""
    expected, body, metrics = received.expected, received.body, metrics_of(request)
    bind(round=expected.round_number)
    state = request.app.state
    result = await to_thread.run_sync(
        ingest_update, state.database, expected, body, state.group_commit, limiter=state.deliverers
    )
    receipt = result.receipt
    if not result.is_new:
        response.status_code = 200
        return receipt
    if result.closed_round:
        wake()
    if result.change is not None:
        notify(result.change)
    metrics.updates_accepted.inc()
    metrics.bytes_up.inc(body.bytes)
    log.info("update-accepted", bytes=body.bytes, digest=body.digest, clipped=receipt.clipped)
    return receipt


@router.get(
    "/clients/{cid}/adapter",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}}, **answers(AuthMissing, Forbidden, NotFound, RateLimited)},
)
def get_adapter(
    reader: DownloadingReader,
    federation_id: FederationId,
    client_id: ClientId,
    database: TheDatabase,
    metrics: TheMetrics,
    round_number: Annotated[
        int | None, Query(alias="round", ge=1, lt=2**31, description="Round number; by default the last.")
    ] = None,
) -> StreamingResponse:
    """Download a client's stored adapter state of a round, or its last one, as the client or an operator.

    The states of older rounds are deleted as TESSERA_KEEP_ROUNDS says; they return 404.
    """
    if isinstance(reader, Member):
        if reader.client_id != client_id:
            raise NotFound
    elif not reader.at_least("operator"):
        raise Forbidden(needs="operator")
    with database.read() as session:
        row = store.newest(session, client_id, round_number)
        if row is None or row.federation_id != federation_id or row.state_payload_id is None:
            raise NotFound
        payload_id = row.state_payload_id
    layout = layout_of(row)
    manifest = AdapterStateManifest(
        federation=federation_id, recipe={}, round=row.round_number, client=client_id, pack=row.pack_digest
    )
    beginning = head(layout, manifest)
    size = 4 * values_of(layout)
    if isinstance(reader, Member):
        count_download(database, metrics, reader.client_id, len(beginning) + size)
    else:
        with database.write() as session:
            still_counts(session, reader)
            reason = f"round {row.round_number}"
            audit_log.append(session, "adapter-downloaded", actor=reader.id, subject=client_id, reason=reason)

    async def content() -> AsyncIterator[bytes]:
        yield beginning
        begin, still = row.state_begin, partial(still_counts, caller=reader)
        async for piece in stream(database, payload_id, begin, begin + size, still):
            yield piece

    return StreamingResponse(
        content(), media_type=MEDIA_TYPE, headers={"Content-Length": str(len(beginning) + size)}
    )
