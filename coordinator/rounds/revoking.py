"""The route that shuts a client out; rounds that waited for it go on without it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from coordinator import audit, events
from coordinator.database import now
from coordinator.dependencies import TheDatabase
from coordinator.enrolment.auth import AsAdminOfClient
from coordinator.enrolment.recognition import still_person
from coordinator.errors import AuthMissing, Forbidden, NotFound
from coordinator.federations.store import one_client, revoke
from coordinator.locks import lock_federation
from coordinator.logs import logger
from coordinator.paths import ClientId, FederationId
from coordinator.problems import answers
from coordinator.rounds import control, store, voiding
from coordinator.rounds.waking import Wake

router = APIRouter(tags=["clients"])
log = logger(__name__)


@router.delete(
    "/v1/federations/{fid}/clients/{cid}",
    status_code=204,
    responses=answers(AuthMissing, Forbidden, NotFound),
)
def revoke_client(
    person: AsAdminOfClient,
    fid: FederationId,
    cid: ClientId,
    database: TheDatabase,
    wake: Wake,
    keep_packs: Annotated[bool, Query()] = False,
) -> None:
    """Shut a client out, effective at once; an update that was accepted before is kept and counts.

    The alignment packs that it stored end, what was learnt under them no longer counts, and the round in
    progress is abandoned. With `keep_packs` they are kept as if an operator had stored them.
    """
    with database.write() as session:
        federation = lock_federation(session, fid)
        still_person(session, person)
        if not revoke(session, fid, cid):
            return
        shown = one_client(session, fid, cid)
        events.append(session, fid, "client", shown.model_dump(mode="json"), cid)
        log.info("client-revoked", federation=fid, client=cid)
        if keep_packs:
            voiding.vouch_for_those_of(session, federation, cid)
        else:
            voiding.void_those_of(session, federation, cid)
        voiding.forget_verdicts_of(session, fid, cid)
        current = store.latest(session, fid)
        if current is not None:
            current = store.numbered(session, fid, current.number, lock=True)
            control.advance(session, current, now(session))
        audit.append(session, "client-revoked", actor=person.id, subject=cid)
    wake()
