"""Route of acceptance tests, which report whether adapters transfer between base model and pivot."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from coordinator.alignment import store
from coordinator.auth.authentication import Member, Person, still_counts
from coordinator.auth.permissions import AsReader
from coordinator.db.engine import database_time
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
from coordinator.rounds.notifications import Change, Notify
from coordinator.storage import audit_log
from schemas.messages.alignment import Acceptance, PackView

router = APIRouter(prefix="/v1/federations/{fid}", tags=["alignment"])
log = logger(__name__)

REPLACED_AFTER = timedelta(seconds=60)
"""Shortest time between two acceptance tests of a client."""


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
        200: {"model": PackView, "description": "The same test was stored before"},
        **answers(JsonMalformed, AuthMissing, Forbidden, NotFound, FederationStateConflict, UploadConflict),
        **answers(Invalid, RateLimited, StorageFull),
    },
)
def put_acceptance(
    caller: AsReader,
    federation_id: FederationId,
    base_model: BaseModel,
    _: HasSpace,
    acceptance: Annotated[Acceptance, Depends(json_body(Acceptance))],
    database: TheDatabase,
    notify: Notify,
    response: Response,
) -> PackView:
    """Store a pack's acceptance test, replacing the earlier one of the same client or of an operator.

    A pack fails when an operator's test fails, or the tests of more than half of its base model's clients;
    an operator's test overrides those of clients. The clients of a failed pack share with clients of the same
    base model only, from the next aggregation on.

    A client may replace its test once a minute.
    """
    if isinstance(caller, Member):
        if caller.base_model != base_model:
            raise Forbidden("a client tests packs of its own base model only; send the test of yours")
    elif not caller.at_least("operator"):
        raise Forbidden(needs="operator")
    with database.write() as session:
        row = lock_federation(session, federation_id)
        alignment = plan_of(row).alignment
        if alignment is None:
            raise FederationStateConflict(
                "the federation's plan has no alignment; create a federation with one", state=row.state
            )
        still_counts(session, caller)
        pack = store.require_row(store.pack(session, federation_id, base_model))
        if acceptance.pack != pack.digest:
            raise Invalid("pack: another pack is stored now; test that one", field="pack", stored=pack.digest)
        ways = {(direction.source, direction.target) for direction in acceptance.directions}
        if ways != {(alignment.pivot, base_model), (base_model, alignment.pivot)} or len(ways) != 2:
            raise Invalid("directions: send pivot to base model and back", field="directions")
        now, tested_by = database_time(session), caller.client_id if isinstance(caller, Member) else None
        earlier, operator_test = store.stored_test(pack, tested_by), store.acceptance(pack, None)
        if acceptance in (operator_test, store.acceptance(pack, tested_by)):
            response.status_code = 200
            return store.view(pack, alignment)
        if operator_test is not None and tested_by is not None:
            raise UploadConflict("an operator tested this pack, and that test stays; none is needed")
        if tested_by is not None and earlier is not None:
            _require_old(earlier["tested_at"], now)
        store.store_acceptance(session, pack, acceptance, tested_by=tested_by, now=now)
        if isinstance(caller, Person):
            reason = f"{base_model}: {acceptance.verdict}"
            audit_log.append(session, "acceptance-set", actor=caller.id, subject=federation_id, reason=reason)
        log.info("pack-tested", federation=federation_id, base_model=base_model, verdict=acceptance.verdict)
        view, change = store.view(pack, alignment), Change(federation_id, base_model, row.events)
    # After the commit, since the event is written from what is stored.
    notify(change)
    return view


def _require_old(tested_at: str, now: datetime) -> None:
    remaining = datetime.fromisoformat(tested_at) + REPLACED_AFTER - now
    if remaining > timedelta(0):
        raise RateLimited(
            remaining.total_seconds(), "the acceptance test was replaced less than a minute ago"
        )
