"""Routes of anchors: the public texts, set by an operator, on which base models are aligned or compared."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from coordinator.alignment import store
from coordinator.auth.authentication import Member, still_counts, still_person
from coordinator.auth.permissions import AsOperator, DownloadingReader
from coordinator.db.federation_lock import lock_federation
from coordinator.errors import (
    AuthMissing,
    FederationStateConflict,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    RateLimited,
)
from coordinator.http.dependencies import TheDatabase, TheMetrics
from coordinator.http.downloads import StoredBody, reply, requested_range
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.concurrency import HasSpace
from coordinator.http.params import FederationId
from coordinator.http.problems import answers
from coordinator.rounds.participations import count_download
from coordinator.storage import audit_log, payloads
from schemas.messages.alignment import Anchors, AnchorsView

router = APIRouter(prefix="/v1/federations/{fid}", tags=["alignment"])

# Largest body of anchor texts.
_ANCHORS_BYTES = 32 * 2**20


@router.put(
    "/anchors",
    status_code=201,
    openapi_extra=takes(
        Anchors,
        example={"anchors": [{"id": "a1", "prompt": "2 + 2 =", "answer": " 4"}]},
        limit=_ANCHORS_BYTES,
    ),
    responses={
        200: {"model": AnchorsView, "description": "The same anchors were stored before"},
        **answers(JsonMalformed, AuthMissing, Forbidden, NotFound, FederationStateConflict, Invalid),
    },
)
def put_anchors(
    person: AsOperator,
    federation_id: FederationId,
    _: HasSpace,
    anchors: Annotated[Anchors, Depends(json_body(Anchors, limit=_ANCHORS_BYTES))],
    database: TheDatabase,
    response: Response,
) -> AnchorsView:
    """Set the public texts on which base models are aligned or compared, before the federation starts."""
    if len({anchor.id for anchor in anchors.anchors}) != len(anchors.anchors):
        raise Invalid(
            "anchors: two texts have the same id; use a different id for each text", field="anchors"
        )
    body = anchors.model_dump_json().encode()
    with database.write() as session:
        # The payload before the federation's lock, as in an update: transactions lock in one order.
        payload_id, digest = payloads.store_bytes(session, body)
        row = lock_federation(session, federation_id)
        still_person(session, person)
        store.require_use_of_anchors(row, anchors)
        stored = store.anchors(session, federation_id)
        if stored is not None and stored.digest == digest:
            response.status_code = 200
        elif row.state != "open" or store.packs(session, federation_id):
            raise FederationStateConflict(
                "the federation has started or has packs; set anchors in a new federation", state=row.state
            )
        anchors_row = store.store_anchors(
            session,
            federation_id,
            payload_id=payload_id,
            digest=digest,
            size=len(body),
            count=len(anchors.anchors),
        )
        if response.status_code != 200:
            audit_log.append(session, "anchors-set", actor=person.id, subject=federation_id, reason=digest)
        return AnchorsView(digest=anchors_row.digest, bytes=anchors_row.bytes, count=anchors_row.count)


@router.get(
    "/anchors",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {"schema": Anchors.model_json_schema()}}},
        **answers(AuthMissing, NotFound, RateLimited),
    },
)
def get_anchors(
    caller: DownloadingReader,
    federation_id: FederationId,
    request: Request,
    database: TheDatabase,
    metrics: TheMetrics,
) -> Response:
    """Download the public texts on which base models are aligned or compared."""
    with database.read() as session:
        row = store.require_row(store.anchors(session, federation_id))
    stored = StoredBody(row.payload_id, row.digest, row.bytes, "application/json")
    part = requested_range(request.headers, stored)
    if isinstance(caller, Member):
        count_download(database, metrics, caller.client_id, part.size)
    return reply(database, stored, part, partial(still_counts, caller=caller))
