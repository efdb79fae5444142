"""The route to join a round, which fixes the weights that the client starts from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO, cast

from fastapi import APIRouter, Depends, Request

from coordinator.auth.permissions import AsMember
from coordinator.errors import (
    AuthMissing,
    BodyTooLarge,
    Busy,
    CapabilityMissing,
    ContentEncodingRefused,
    DigestMismatch,
    DigestMissing,
    LayoutMismatch,
    MediaTypeRefused,
    MetadataRefused,
    NotDrawn,
    NotFound,
    PackMissing,
    RoundClosed,
    SecureSumRequired,
    SignatureRefused,
    TooManySigned,
)
from coordinator.federations.store import federation, plan_of
from coordinator.http.dependencies import TheDatabase, TheMetrics, TheServerKey
from coordinator.http.limits.concurrency import codec_slot
from coordinator.http.params import RoundNumber
from coordinator.http.problems import answers
from coordinator.http.uploads import ReceivedBody, receive
from coordinator.joining.join import SentSketch, join
from coordinator.observability.logs import bind
from coordinator.rounds import base_weights
from coordinator.rounds.notifications import Notify
from coordinator.strategies.base import Sketch
from coordinator.updates.validation import Address, check_address, read_sketch
from schemas.maths.adapter import SIGNATURE
from schemas.messages.federations import SignaturePlan
from schemas.messages.rounds import Joined
from schemas.messages.updates import SignatureManifest
from schemas.wire.envelope import MEDIA_TYPE, unpack
from schemas.wire.header import Slot

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])

_SIGNATURE_BODY_BYTES = 2**20


async def _body(request: Request, _: AsMember) -> AsyncIterator[ReceivedBody | None]:
    if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
        yield None
        return
    async with receive(request, max_bytes=_SIGNATURE_BODY_BYTES, media_types={MEDIA_TYPE}) as body:
        yield body


@router.post(
    "/rounds/{n}/join",
    openapi_extra={"requestBody": {"required": False, "content": {MEDIA_TYPE: {}}}},
    responses={
        **answers(AuthMissing, NotFound, RoundClosed, PackMissing, Busy, DigestMissing, DigestMismatch),
        **answers(MediaTypeRefused, ContentEncodingRefused, BodyTooLarge, SignatureRefused, MetadataRefused),
        **answers(NotDrawn, TooManySigned, LayoutMismatch, CapabilityMissing, SecureSumRequired),
    },
)
def join_round(
    member: AsMember,
    n: RoundNumber,
    body: Annotated[ReceivedBody | None, Depends(_body)],
    database: TheDatabase,
    metrics: TheMetrics,
    key: TheServerKey,
    tell: Notify,
) -> Joined:
    """Join a round, and return the weights to start from; a repeated request gets the same answer.

    The body is a newcomer's gradient sketch, by which it is weighed before its first update; where updates
    are summed, there is none.
    """
    bind(round=n)
    sketch_body = None
    if body is not None:
        with database.read() as session:
            whole = plan_of(federation(session, member.federation_id))
            if whole.privacy.secure_sum is not None:
                raise SecureSumRequired("updates are summed, and no sketch is used; join without a body")
            plan = whole.signature
            pack = base_weights.pack_digest(session, member.federation_id, member.base_model)
        with codec_slot():
            sketch = _sketch(body, Address(member.federation_id, n, member.client_id, pack), plan)
        sketch_body = SentSketch(sketch, body.bytes)
    outcome = join(database, member, n, sketch_body, key)
    if outcome.is_new:
        metrics.bytes_up.inc(body.bytes if body is not None else 0)
    if outcome.change is not None:
        tell(outcome.change)
    return outcome.joined


def _sketch(body: ReceivedBody, address: Address, plan: SignaturePlan) -> Sketch:
    with unpack(
        cast("BinaryIO", body.file),
        encoding=body.encoding,
        expected={SIGNATURE: Slot((None,), frozenset({"F32"}))},
        max_bytes=_SIGNATURE_BODY_BYTES,
    ) as envelope:
        vector = read_sketch(envelope, plan)
        manifest = envelope.manifest(SignatureManifest)
        # A newcomer may not know its pack yet; if it names one, it must be the right one.
        if manifest.pack is None:
            manifest = manifest.model_copy(update={"pack": address.pack})
        check_address(manifest, address)
    if vector is None:
        raise SignatureRefused
    return Sketch(vector, manifest.signature_reliability, manifest.signature_epsilon)
