"""The route of acceptance tests: a client or an operator says whether what is learnt under a pack transfers.

A verdict is believed as a pack's held-out errors are: every agent of the base model can repeat the test, and
an operator's word outweighs a client's.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from coordinator import audit, events
from coordinator.alignment import store
from coordinator.database import now
from coordinator.dependencies import TheDatabase
from coordinator.enrolment.auth import AsReader
from coordinator.enrolment.recognition import Member, Person, still_counts
from coordinator.errors import (
    AuthMissing,
    FederationStateConflict,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    RateLimited,
    UploadConflict,
)
from coordinator.federations.store import plan_of
from coordinator.json_body import json_body, takes
from coordinator.locks import lock_federation
from coordinator.logs import logger
from coordinator.paths import BaseModel, FederationId
from coordinator.problems import answers
from schemas.messages.alignment import Acceptance, PackView

router = APIRouter(prefix="/v1/federations/{fid}", tags=["alignment"])
log = logger(__name__)


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
        **answers(Invalid, RateLimited),
    },
)
def put_acceptance(
    caller: AsReader,
    fid: FederationId,
    base_model: BaseModel,
    acceptance: Annotated[Acceptance, Depends(json_body(Acceptance))],
    database: TheDatabase,
    response: Response,
) -> PackView:
    """Store a pack's acceptance test; a client replaces a client's, an operator everybody's.

    When it failed, clients of this base model share with those of the identical base model only, from the
    next aggregation on.
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
        tested_by = caller.client_id if isinstance(caller, Member) else None
        if pack.acceptance is not None:
            author = pack.acceptance["tested_by"]
            if store.acceptance(pack) == acceptance and author in (tested_by, None):
                response.status_code = 200
                return store.view(pack)
            if author is None and tested_by is not None:
                raise UploadConflict("an operator's acceptance test stands")
        store.keep_acceptance(session, pack, acceptance, tested_by=tested_by, moment=now(session))
        events.append(session, fid, "alignment", {"base_model": base_model, "digest": pack.digest})
        if isinstance(caller, Person):
            reason = f"{base_model}: {acceptance.verdict}"
            audit.append(session, "acceptance-set", actor=caller.id, subject=fid, reason=reason)
        log.info("pack-tested", federation=fid, base_model=base_model, verdict=acceptance.verdict)
        return store.view(pack)
