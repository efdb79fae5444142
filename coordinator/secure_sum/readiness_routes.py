"""The route with which a client says that it has trained and waits for the sum."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from coordinator.auth.permissions import AsMember
from coordinator.errors import (
    AuthMissing,
    BaseMismatch,
    CapabilityMissing,
    Forbidden,
    Invalid,
    JsonMalformed,
    NoSecureSum,
    NotFound,
    NotJoined,
    RateLimited,
    RoundClosed,
    StorageFull,
)
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.concurrency import HasSpace
from coordinator.http.params import RoundNumber
from coordinator.http.problems import answers
from coordinator.observability.logs import bind, logger
from coordinator.rounds.notifications import Notify, Wake
from coordinator.secure_sum.errors import OrganisationTaken
from coordinator.secure_sum.readiness import make_ready
from schemas.messages.secure_sum import CAPABILITY, ReadyReceipt, ReadyRequest

router = APIRouter(prefix="/v1/federations/{fid}", tags=["secure sum"])
log = logger(__name__)

_DIGEST = f"sha256:{'0' * 64}"


@router.put(
    "/rounds/{n}/ready",
    status_code=201,
    openapi_extra=takes(ReadyRequest, example={"base": _DIGEST, "values": _DIGEST, "format": CAPABILITY}),
    responses={
        200: {"model": ReadyReceipt, "description": "The client was ready before"},
        **answers(JsonMalformed, AuthMissing, Forbidden, NotFound, Invalid, RateLimited, StorageFull),
        **answers(NotJoined, RoundClosed, NoSecureSum, OrganisationTaken, BaseMismatch, CapabilityMissing),
    },
)
def put_ready(
    member: AsMember,
    n: RoundNumber,
    _: HasSpace,
    ready: Annotated[ReadyRequest, Depends(json_body(ReadyRequest))],
    database: TheDatabase,
    wake: Wake,
    notify: Notify,
    response: Response,
) -> ReadyReceipt:
    """Count a client on for the sum of a round: it has trained, and sends its update in the sum only.

    The sum begins once all clients that the round waits for are ready, or at the deadline with a quorum. A
    repeated request returns 200 and the same receipt.
    """
    bind(round=n)
    outcome = make_ready(database, member, n, ready)
    if not outcome.is_new:
        response.status_code = 200
        return outcome.receipt
    if outcome.closed_round:
        wake()
    if outcome.change is not None:
        notify(outcome.change)
    log.info("client-ready")
    return outcome.receipt
