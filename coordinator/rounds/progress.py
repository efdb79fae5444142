"""The route by which clients report their progress, and the stored report."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from coordinator.auth.authentication import still_member
from coordinator.auth.permissions import AsMember
from coordinator.errors import (
    AuthMissing,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    NotJoined,
    RateLimited,
    RoundClosed,
)
from coordinator.federations.store import federation, plan_of
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.poll_rate import PollRate
from coordinator.http.params import RoundNumber
from coordinator.http.problems import answers
from coordinator.rounds.progress_reports import store_progress
from schemas.messages.progress import Progress

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])

PER_SECOND = 0.5
"""Reports of a client per second, after a burst of a few."""
BURST = 5
_LIMIT_BYTES = 1024
_EXAMPLE = {"step": 12, "steps": 40, "loss": 1.84, "tokens_per_second": 910.5, "seconds_left": 31.0}


@router.put(
    "/rounds/{n}/progress",
    status_code=204,
    openapi_extra=takes(Progress, example=_EXAMPLE, limit=_LIMIT_BYTES),
    responses=answers(
        JsonMalformed, AuthMissing, Forbidden, NotFound, NotJoined, RoundClosed, Invalid, RateLimited
    ),
)
def put_progress(
    member: AsMember,
    n: RoundNumber,
    progress: Annotated[Progress, Depends(json_body(Progress, limit=_LIMIT_BYTES))],
    request: Request,
    database: TheDatabase,
) -> None:
    """Store how far a client's training has come, in place of its last report; for views only.

    A report is accepted from when the client has joined a round until its update has arrived, one every two
    seconds. It has no loss where updates are summed.
    """
    rate: PollRate = request.app.state.progress_rate
    rate.take(member.client_id)
    with database.write() as session:
        still_member(session, member)
        plan = plan_of(federation(session, member.federation_id))
        # A loss by name would show what the sum of losses hides.
        if progress.loss is not None and plan.privacy.secure_sum is not None:
            raise Invalid("loss: this federation sums losses; report none", field="loss")
        store_progress(session, member.federation_id, n, member.client_id, progress)
