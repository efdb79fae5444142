"""The routes of alignment packs, which come from the first agent of a base model, the pivot's first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, BinaryIO, cast

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.orm import Session

from coordinator.alignment import intake, store
from coordinator.auth.authentication import Member, Person, still_counts, still_person
from coordinator.auth.permissions import AsOperator, AsReader, DownloadingReader
from coordinator.db.engine import database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import FederationRow
from coordinator.errors import (
    AuthMissing,
    BodyTooLarge,
    Busy,
    ContentEncodingRefused,
    DigestMismatch,
    DigestMissing,
    FederationStateConflict,
    Forbidden,
    MediaTypeRefused,
    MetadataRefused,
    NotFound,
    PivotPackMissing,
    RangeUnsatisfiable,
    RateLimited,
    RequestTimeout,
    StorageFull,
    UploadConflict,
)
from coordinator.federations.store import federation
from coordinator.http.dependencies import TheDatabase, TheMetrics
from coordinator.http.downloads import Stored, reply, requested_range
from coordinator.http.limits.concurrency import HasSpace, TheLocks, codec_slot
from coordinator.http.params import BaseModel, FederationId
from coordinator.http.problems import answers
from coordinator.http.uploads import ReceivedBody, receive
from coordinator.observability.logs import logger
from coordinator.rounds import pack_voiding, participations
from coordinator.rounds.notifications import Wake
from coordinator.rounds.participations import sent_to
from coordinator.storage import audit_log, event_log, payloads
from schemas.messages.alignment import AlignmentManifest, PackList, PackView
from schemas.messages.federations import FederationPlan
from schemas.wire.compress import is_frame
from schemas.wire.digests import from_field
from schemas.wire.envelope import MEDIA_TYPE, unpack

router = APIRouter(prefix="/v1/federations/{federation_id}", tags=["alignment"])
log = logger(__name__)

PACK_BYTES = 256 * 2**20
"""The most a pack may have, the pivot's responses included, encoded or decoded."""


@router.get("/alignments", responses=answers(AuthMissing, NotFound))
def list_packs(_: AsReader, federation_id: FederationId, database: TheDatabase) -> PackList:
    """List the alignment packs with their held-out errors, and the digests of those that ended."""
    with database.read() as session:
        federation(session, federation_id)
        return PackList(
            items=[store.view(row) for row in store.packs(session, federation_id)],
            voided=store.voided(session, federation_id),
        )


def _may_deliver(
    caller: AsReader,
    federation_id: FederationId,
    base_model: BaseModel,
    database: TheDatabase,
    request: Request,
) -> None:
    """Check that an operator or a client of the base model delivers, the pivot's pack first.

    Raises:
        Forbidden: somebody else.
        PivotPackMissing: the pivot's comes first.
        UploadConflict: another pack is there to stay; of a body that is so large, nothing is read for that.
    """
    with database.read() as session:
        row = federation(session, federation_id)
        if isinstance(caller, Person):
            if not caller.at_least("operator"):
                raise Forbidden(needs="operator")
        elif caller.base_model != base_model:
            raise Forbidden("a client delivers the pack of its own base model only")
        known = store.pack(session, federation_id, base_model)
        _, alignment = store.planned(row)
        store.set_for(session, row, alignment, base_model)
    announced = from_field(",".join(request.headers.getlist("content-digest")))
    if known is not None and announced not in (known.digest, None):
        intake.require_replaceable(known.digest, by_client=isinstance(caller, Member))


async def _body(
    request: Request,
    caller: AsReader,
    _: Annotated[None, Depends(_may_deliver)],
    __: HasSpace,
    turns: TheLocks,
) -> AsyncIterator[ReceivedBody]:
    name = caller.client_id if isinstance(caller, Member) else caller.id
    async with (
        turns.hold(("pack", name)),
        receive(request, max_bytes=PACK_BYTES, media_types={MEDIA_TYPE}) as body,
    ):
        yield body


@router.put(
    "/alignments/{base_model}",
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: {}}}},
    responses={
        200: {"model": PackView, "description": "These bytes were stored before"},
        **answers(AuthMissing, Forbidden, NotFound, FederationStateConflict, UploadConflict, BodyTooLarge),
        **answers(PivotPackMissing),
        **answers(DigestMissing, DigestMismatch, MediaTypeRefused, ContentEncodingRefused, MetadataRefused),
        **answers(RequestTimeout, RateLimited, Busy, StorageFull),
    },
)
def put_pack(
    caller: AsReader,
    federation_id: FederationId,
    base_model: BaseModel,
    body: Annotated[ReceivedBody, Depends(_body, scope="function")],
    database: TheDatabase,
    metrics: TheMetrics,
    wake: Wake,
    response: Response,
) -> PackView:
    """Keep the alignment pack of a base model; an operator may replace it at any time.

    The one that is replaced ends, and with the pivot's all that were made on it: what was learnt under them
    no longer counts, and the round in progress is abandoned.
    """
    with database.read() as session:
        row = federation(session, federation_id)
        plan, alignment = store.planned(row)
        known = store.pack(session, federation_id, base_model)
        wanted_set = store.set_for(session, row, alignment, base_model)
    if known is not None and known.digest != body.digest:
        intake.require_replaceable(known.digest, by_client=isinstance(caller, Member))
    with codec_slot():
        manifest = _checked(body, federation_id, base_model, plan, wanted_set)
    with database.write() as session:
        file = cast("BinaryIO", body.file)
        payload_id = payloads.store(session, body.digest, body.bytes, payloads.pieces(file))
        row = lock_federation(session, federation_id)
        still_counts(session, caller)
        known = store.pack(session, federation_id, base_model)
        if known is not None:
            if known.digest == body.digest:
                response.status_code = 200
                if isinstance(caller, Person):
                    known.stored_by = None  # a person vouches for it
                return store.view(known)
            intake.require_replaceable(known.digest, by_client=isinstance(caller, Member))
            pack_voiding.void(session, row, known)
        kept = _keep(session, caller, row, base_model, manifest, payload_id, body)
    wake()
    metrics.bytes_up.inc(body.bytes if isinstance(caller, Member) else 0)
    return kept


@router.get(
    "/alignments/{base_model}",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "The stored bytes"},
        206: {"content": {MEDIA_TYPE: {}}, "description": "The range that was asked for"},
        **answers(AuthMissing, Forbidden, NotFound, RangeUnsatisfiable, RateLimited),
    },
)
def get_pack(
    caller: DownloadingReader,
    federation_id: FederationId,
    base_model: BaseModel,
    request: Request,
    database: TheDatabase,
    metrics: TheMetrics,
) -> Response:
    """Give the alignment pack of a base model to the federation's agents and to operators."""
    if isinstance(caller, Person) and not caller.at_least("operator"):
        raise Forbidden(needs="operator")
    with database.read() as session:
        row = store.found(store.pack(session, federation_id, base_model))
        beginning = payloads.read(session, row.payload_id, 0, min(4, row.bytes))
    encoding = "zstd" if is_frame(beginning) else None
    stored = Stored(row.payload_id, row.digest, row.bytes, MEDIA_TYPE, encoding)
    part = requested_range(request.headers, stored)
    if isinstance(caller, Member):
        sent_to(database, metrics, caller.client_id, part.size)
    return reply(database, stored, part, partial(still_counts, caller=caller))


@router.delete(
    "/alignments/{base_model}",
    status_code=204,
    responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict),
)
def delete_pack(
    person: AsOperator, federation_id: FederationId, base_model: BaseModel, database: TheDatabase, wake: Wake
) -> None:
    """Delete the alignment pack of a base model, and with the pivot's all that were made on it.

    What was learnt under them no longer counts, and the round in progress is abandoned.
    """
    with database.write() as session:
        row = lock_federation(session, federation_id)
        still_person(session, person)
        store.planned(row)
        pack_voiding.void(session, row, store.found(store.pack(session, federation_id, base_model)))
        log.info("pack-deleted", federation=federation_id, base_model=base_model)
        audit_log.append(session, "pack-deleted", actor=person.id, subject=federation_id, reason=base_model)
    wake()


def _checked(
    body: ReceivedBody, federation_id: str, base_model: str, plan: FederationPlan, wanted_set: str | None
) -> AlignmentManifest:
    alignment = plan.alignment
    is_pivot = alignment is not None and alignment.pivot == base_model and alignment.frames != "random"
    with unpack(
        cast("BinaryIO", body.file),
        encoding=body.encoding,
        expected=intake.expected(plan, with_responses=is_pivot),
        max_bytes=min(PACK_BYTES, intake.most_decoded(body.bytes)),
    ) as envelope:
        return intake.judge(
            envelope, federation_id=federation_id, base_model=base_model, plan=plan, wanted_set=wanted_set
        )


def _keep(
    session: Session,
    caller: Person | Member,
    row: FederationRow,
    base_model: str,
    manifest: AlignmentManifest,
    payload_id: int,
    body: ReceivedBody,
) -> PackView:
    """Write a pack down, unless the pivot's ended or was replaced meanwhile."""
    _, alignment = store.planned(row)
    wanted_set = store.set_for(session, row, alignment, base_model)
    if wanted_set not in (None, manifest.alignment_set):
        raise MetadataRefused("the manifest's alignment_set does not fit", field="alignment_set")
    stored_by = None
    if isinstance(caller, Member):
        participations.count_bytes(session, None, caller.client_id, up=body.bytes)
        stored_by = caller.client_id
    pack_voiding.restore(session, row.id, base_model, body.digest)
    kept = store.keep_pack(
        session,
        row.id,
        base_model,
        manifest=manifest,
        payload_id=payload_id,
        digest=body.digest,
        size=body.bytes,
        stored_by=stored_by,
        now=database_time(session),
    )
    event_log.append(session, row.id, "alignment", {"base_model": base_model, "digest": body.digest})
    if isinstance(caller, Person):
        reason = f"{base_model}: {body.digest}"
        audit_log.append(session, "pack-stored", actor=caller.id, subject=row.id, reason=reason)
    log.info("pack-stored", federation=row.id, base_model=base_model, selected=len(manifest.selected))
    return store.view(kept)
