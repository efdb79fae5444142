"""The route of acceptance tests: whether what is learnt under a pack transfers.

Every client of the base model has one verdict. A pack fails when more than half of them say so, or when an
operator does, whose verdict stands whatever clients report.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from coordinator.alignment import store
from coordinator.auth.authentication import Member, Person, still_counts
from coordinator.auth.permissions import AsReader
from coordinator.db.engine import now
from coordinator.db.federation_lock import lock_federation
from coordinator.errors import (
    AuthMissing,
    FederationStateConflict,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    RateLimited,
    StorageFull,
    UploadConflict,
)
from coordinator.federations.store import plan_of
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.concurrency import HasSpace
from coordinator.http.params import BaseModel, FederationId
from coordinator.http.problems import answers
from coordinator.observability.logs import logger
from coordinator.rounds.notifications import Change, Tell
from coordinator.storage import audit_log
from schemas.messages.alignment import Acceptance, PackView

router = APIRouter(prefix="/v1/federations/{fid}", tags=["alignment"])
log = logger(__name__)

REPLACED_AFTER = timedelta(seconds=60)
"""How old a client's acceptance test is at least when the same client replaces it."""


def _direction(source: str, target: str) -> dict[str, Any]:
    ending = {"loss": [0.1, 0.2, 0.1, 0.2, 0.1], "exact_match": [0.9, 0.8, 0.9, 0.8, 0.9]}
    worse = {"loss": [0.5, 0.6, 0.4, 0.5, 0.6], "exact_match": [0.5, 0.4, 0.6, 0.5, 0.4]}
    endings = {"right": ending, "zero": worse, "wrong_task": worse, "random_frames": worse}
    return {"source": source, "target": target, "learnt": ending, "endings": endings}


_MODELS = ("pivot-0123456789ab", "own-0123456789ab")
_EXAMPLE = {
    "pack": "sha256:" + "0" * 64,
    "verdict": "passed",
    "directions": [_direction(*ways) for ways in (_MODELS, _MODELS[::-1])],
    "taught": 60,
    "steps": 50,
    "learning_rate": 0.003,
    "seed": 0,
}


@router.put(
    "/alignments/{base_model}/acceptance",
    status_code=201,
    openapi_extra=takes(Acceptance, example=_EXAMPLE),
    responses={
        200: {"model": PackView, "description": "This was stored before"},
        **answers(JsonMalformed, AuthMissing, Forbidden, NotFound, FederationStateConflict, UploadConflict),
        **answers(Invalid, RateLimited, StorageFull),
    },
)
def put_acceptance(
    caller: AsReader,
    fid: FederationId,
    base_model: BaseModel,
    _: HasSpace,
    acceptance: Annotated[Acceptance, Depends(json_body(Acceptance))],
    database: TheDatabase,
    tell: Tell,
    response: Response,
) -> PackView:
    """Store a pack's acceptance test, in place of the one that the same client or an operator stored before.

    A pack fails when an operator's test fails, or those of more than half of its base model's clients. Then
    these share with clients of the identical base model only, from the next aggregation on.

    A client replaces its own test when that is a minute old.
    """
    if isinstance(caller, Member):
        if caller.base_model != base_model:
            raise Forbidden("a client tests the pack of its own base model")
    elif not caller.at_least("operator"):
        raise Forbidden(needs="operator")
    with database.write() as session:
        row = lock_federation(session, fid)
        alignment = plan_of(row).alignment
        if alignment is None:
            raise FederationStateConflict("this federation's plan has no alignment", state=row.state)
        still_counts(session, caller)
        pack = store.found(store.pack(session, fid, base_model))
        if acceptance.pack != pack.digest:
            raise Invalid("pack: this is not the pack that is stored", field="pack", stored=pack.digest)
        ways = {(direction.source, direction.target) for direction in acceptance.directions}
        if ways != {(alignment.pivot, base_model), (base_model, alignment.pivot)} or len(ways) != 2:
            raise Invalid("directions: must be pivot to base model and back", field="directions")
        moment, tested_by = now(session), caller.client_id if isinstance(caller, Member) else None
        own, by_operator = store.stored_test(pack, tested_by), store.acceptance(pack, None)
        if acceptance in (by_operator, store.acceptance(pack, tested_by)):
            response.status_code = 200
            return store.view(pack)
        if by_operator is not None and tested_by is not None:
            raise UploadConflict("an operator's acceptance test stands")
        if tested_by is not None and own is not None:
            _require_old(own["tested_at"], moment)
        store.keep_acceptance(session, pack, acceptance, tested_by=tested_by, moment=moment)
        if isinstance(caller, Person):
            reason = f"{base_model}: {acceptance.verdict}"
            audit_log.append(session, "acceptance-set", actor=caller.id, subject=fid, reason=reason)
        log.info("pack-tested", federation=fid, base_model=base_model, verdict=acceptance.verdict)
        shown, change = store.view(pack), Change(fid, base_model, row.events)
    tell(change)
    return shown


def _require_old(tested_at: str, moment: datetime) -> None:
    """Make sure that a client may replace its own test.

    Raises:
        RateLimited: it was stored less than a minute ago.
    """
    left = datetime.fromisoformat(tested_at) + REPLACED_AFTER - moment
    if left > timedelta(0):
        raise RateLimited(left.total_seconds(), "this pack's acceptance test was replaced a moment ago")
