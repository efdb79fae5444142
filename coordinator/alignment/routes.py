"""Routes of alignment packs. A client or an operator stores a base model's pack, the pivot's first."""

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
from coordinator.federations.store import federation, plan_of
from coordinator.http.dependencies import TheDatabase, TheMetrics
from coordinator.http.downloads import StoredBody, reply, requested_range
from coordinator.http.limits.concurrency import HasSpace, TheLocks, codec_slot
from coordinator.http.params import BaseModel, FederationId
from coordinator.http.problems import answers
from coordinator.http.uploads import ReceivedBody, receive
from coordinator.observability.logs import logger
from coordinator.rounds import pack_voiding, participations
from coordinator.rounds.notifications import Wake
from coordinator.rounds.participations import count_download
from coordinator.storage import audit_log, event_log, payloads
from schemas.messages.alignment import PACK_BYTES, AlignmentManifest, PackList, PackView
from schemas.messages.federations import FederationPlan
from schemas.wire.compress import is_frame
from schemas.wire.digests import from_field
from schemas.wire.envelope import MEDIA_TYPE, unpack

router = APIRouter(prefix="/v1/federations/{fid}", tags=["alignment"])
log = logger(__name__)


@router.get("/alignments", responses=answers(AuthMissing, NotFound))
def list_packs(_: AsReader, federation_id: FederationId, database: TheDatabase) -> PackList:
    """List the alignment packs with their held-out errors, and the digests of voided packs."""
    with database.read() as session:
        plan = plan_of(federation(session, federation_id)).alignment
        if plan is None:
            return PackList(items=[], voided=[])
        return PackList(
            items=[store.view(row, plan) for row in store.packs(session, federation_id)],
            voided=store.voided(session, federation_id),
        )


def _authorize_upload(
    caller: AsReader,
    federation_id: FederationId,
    base_model: BaseModel,
    database: TheDatabase,
    request: Request,
) -> None:
    """Check that the caller may store the pack, before its large body is read.

    Raises:
        Forbidden: the caller is neither an operator nor a client of the base model, nor is the pack the
            pivot's in a plan that accepts it from any client.
        PivotPackMissing: the pivot's pack is not stored yet.
        UploadConflict: the caller is a client and another pack is stored.
    """
    with database.read() as session:
        row = federation(session, federation_id)
        if isinstance(caller, Person):
            if not caller.at_least("operator"):
                raise Forbidden(needs="operator")
        elif caller.base_model != base_model and not _is_open_to_clients(row, base_model):
            raise Forbidden("a client stores packs of its own base model only; send the pack of yours")
        stored = store.pack(session, federation_id, base_model)
        _, alignment = store.require_alignment(row)
        store.required_set(session, row, alignment, base_model)
    # The announced digest shows before the upload whether other bytes are stored.
    announced = from_field(",".join(request.headers.getlist("content-digest")))
    if stored is not None and announced not in (stored.digest, None):
        intake.require_replaceable(stored.digest, is_client=isinstance(caller, Member))


def _is_open_to_clients(row: FederationRow, base_model: str) -> bool:
    alignment = plan_of(row).alignment
    return alignment is not None and alignment.pivot_pack_by_any_client and base_model == alignment.pivot


async def _body(
    request: Request,
    caller: AsReader,
    _: Annotated[None, Depends(_authorize_upload)],
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
        200: {"model": PackView, "description": "The same bytes were stored before"},
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
    """Store the alignment pack of a base model. Only an operator may replace a stored pack, at any time.

    The replaced pack is voided, and with the pivot's all packs that depend on it: updates that were trained
    with them no longer count, and the round in progress is abandoned.
    """
    with database.read() as session:
        row = federation(session, federation_id)
        plan, alignment = store.require_alignment(row)
        stored = store.pack(session, federation_id, base_model)
        required_set = store.required_set(session, row, alignment, base_model)
    if stored is not None and stored.digest != body.digest:
        intake.require_replaceable(stored.digest, is_client=isinstance(caller, Member))
    # Decoded before the transaction, which must stay short.
    with codec_slot():
        manifest = _validated(body, federation_id, base_model, plan, required_set)
    with database.write() as session:
        file = cast("BinaryIO", body.file)
        payload_id = payloads.store(session, body.digest, body.bytes, payloads.pieces(file))
        row = lock_federation(session, federation_id)
        # Checked again under the lock: another request may have stored a pack meanwhile.
        still_counts(session, caller)
        stored = store.pack(session, federation_id, base_model)
        if stored is not None:
            if stored.digest == body.digest:
                response.status_code = 200
                if isinstance(caller, Person):
                    stored.stored_by = None  # from now on an operator's pack, which no revocation voids
                return store.view(stored, alignment)
            intake.require_replaceable(stored.digest, is_client=isinstance(caller, Member))
            pack_voiding.void(session, row, stored)
        view = _insert(session, caller, row, base_model, manifest, payload_id, body)
    wake()
    metrics.bytes_up.inc(body.bytes if isinstance(caller, Member) else 0)
    return view


@router.get(
    "/alignments/{base_model}",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "The stored bytes"},
        206: {"content": {MEDIA_TYPE: {}}, "description": "The requested range"},
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
    """Download the alignment pack of a base model, as a client of the federation or an operator."""
    if isinstance(caller, Person) and not caller.at_least("operator"):
        raise Forbidden(needs="operator")
    with database.read() as session:
        row = store.require_row(store.pack(session, federation_id, base_model))
        beginning = payloads.read(session, row.payload_id, 0, min(4, row.bytes))
    encoding = "zstd" if is_frame(beginning) else None
    stored = StoredBody(row.payload_id, row.digest, row.bytes, MEDIA_TYPE, encoding)
    part = requested_range(request.headers, stored)
    if isinstance(caller, Member):
        count_download(database, metrics, caller.client_id, part.size)
    return reply(database, stored, part, partial(still_counts, caller=caller))


@router.delete(
    "/alignments/{base_model}",
    status_code=204,
    responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict),
)
def delete_pack(
    person: AsOperator, federation_id: FederationId, base_model: BaseModel, database: TheDatabase, wake: Wake
) -> None:
    """Delete the alignment pack of a base model, and with the pivot's all packs that depend on it.

    Updates that were trained with them no longer count, and the round in progress is abandoned.
    """
    with database.write() as session:
        row = lock_federation(session, federation_id)
        still_person(session, person)
        store.require_alignment(row)
        pack_voiding.void(session, row, store.require_row(store.pack(session, federation_id, base_model)))
        log.info("pack-deleted", federation=federation_id, base_model=base_model)
        audit_log.append(session, "pack-deleted", actor=person.id, subject=federation_id, reason=base_model)
    wake()


def _validated(
    body: ReceivedBody, federation_id: str, base_model: str, plan: FederationPlan, required_set: str | None
) -> AlignmentManifest:
    alignment = plan.alignment
    is_pivot = alignment is not None and alignment.pivot == base_model and alignment.frames != "random"
    with unpack(
        cast("BinaryIO", body.file),
        encoding=body.encoding,
        expected=intake.expected_tensors(plan, has_responses=is_pivot),
        max_bytes=min(PACK_BYTES, intake.max_decoded_bytes(body.bytes)),
    ) as envelope:
        return intake.validate_pack(
            envelope,
            federation_id=federation_id,
            base_model=base_model,
            plan=plan,
            required_set=required_set,
        )


def _insert(
    session: Session,
    caller: Person | Member,
    row: FederationRow,
    base_model: str,
    manifest: AlignmentManifest,
    payload_id: int,
    body: ReceivedBody,
) -> PackView:
    _, alignment = store.require_alignment(row)
    required_set = store.required_set(session, row, alignment, base_model)
    if required_set not in (None, manifest.alignment_set):
        raise MetadataRefused(
            "the manifest's alignment_set is not the current one; build the pack again", field="alignment_set"
        )
    stored_by = None
    if isinstance(caller, Member):
        participations.count_upload(session, None, caller.client_id, body.bytes)
        stored_by = caller.client_id
    # A voided pack is valid again once the same bytes are stored.
    pack_voiding.restore(session, row.id, base_model, body.digest)
    pack = store.insert_pack(
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
    return store.view(pack, alignment)
