"""The routes with which people run a federation: start, pause, finish. Who did it is in the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Person, still_person
from coordinator.auth.permissions import AsAdminOfClient, AsOperator
from coordinator.db.engine import database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import FederationRow
from coordinator.errors import AnchorsMissing, AuthMissing, FederationStateConflict, Forbidden, NotFound
from coordinator.federations.store import client_details, revoke, view
from coordinator.http.dependencies import TheDatabase
from coordinator.http.params import ClientId, FederationId
from coordinator.http.problems import answers
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import logger
from coordinator.rounds import pack_voiding, store, transitions
from coordinator.rounds.notifications import Wake
from coordinator.storage import audit_log, event_log
from schemas.messages.federations import Federation

router = APIRouter(prefix="/v1/federations/{federation_id}", tags=["rounds"])
log = logger(__name__)


@router.post(
    "/start", responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict, AnchorsMissing)
)
def start_federation(
    person: AsOperator, federation_id: FederationId, database: TheDatabase, wake: Wake
) -> Federation:
    """Open the first round, or go on after a pause."""
    with database.write() as session:
        row = _locked(session, federation_id, person)
        before = row.state
        transitions.start(session, row)
        _write_down(session, row, "federation-started", person, before)
        shown = view(session, row)
    may_crash("start-committed")
    wake()
    return shown


@router.post("/pause", responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict))
def pause_federation(person: AsOperator, federation_id: FederationId, database: TheDatabase) -> Federation:
    """Let the current round complete and open no other."""
    with database.write() as session:
        row = _locked(session, federation_id, person)
        before = row.state
        transitions.pause(session, row)
        _write_down(session, row, "federation-paused", person, before)
        return view(session, row)


@router.post("/finish", responses=answers(AuthMissing, Forbidden, NotFound))
def finish_federation(
    person: AsOperator, federation_id: FederationId, database: TheDatabase, wake: Wake
) -> Federation:
    """End the federation for good; the current round is abandoned."""
    with database.write() as session:
        row = _locked(session, federation_id, person)
        before = row.state
        transitions.finish(session, row)
        _write_down(session, row, "federation-finished", person, before)
        shown = view(session, row)
    wake()
    return shown


def _locked(session: Session, federation_id: str, person: Person) -> FederationRow:
    row = lock_federation(session, federation_id)
    still_person(session, person)
    return row


def _write_down(
    session: Session, row: FederationRow, event: audit_log.Event, person: Person, before: str
) -> None:
    """Write into the audit log what changed; a repeated request changes nothing."""
    if row.state != before:
        audit_log.append(session, event, actor=person.id, subject=row.id)
        log.info(event, federation=row.id)


clients_router = APIRouter(tags=["clients"])


@clients_router.delete(
    "/v1/federations/{federation_id}/clients/{client_id}",
    status_code=204,
    responses=answers(AuthMissing, Forbidden, NotFound),
)
def revoke_client(
    person: AsAdminOfClient,
    federation_id: FederationId,
    client_id: ClientId,
    database: TheDatabase,
    wake: Wake,
    keep_packs: Annotated[bool, Query()] = False,
) -> None:
    """Shut a client out, effective at once; an update that was accepted before is kept and counts.

    The alignment packs that it stored end, what was learnt under them no longer counts, and the round in
    progress is abandoned. With `keep_packs` they are kept as if an operator had stored them.
    """
    with database.write() as session:
        federation = lock_federation(session, federation_id)
        still_person(session, person)
        if not revoke(session, federation_id, client_id):
            return
        shown = client_details(session, federation_id, client_id)
        event_log.append(session, federation_id, "client", shown.model_dump(mode="json"), client_id)
        log.info("client-revoked", federation=federation_id, client=client_id)
        if keep_packs:
            pack_voiding.vouch_for_those_of(session, federation, client_id)
        else:
            pack_voiding.void_those_of(session, federation, client_id)
        pack_voiding.forget_verdicts_of(session, federation_id, client_id)
        current = store.latest(session, federation_id)
        if current is not None:
            current = store.numbered(session, federation_id, current.number, lock=True)
            transitions.advance(session, current, database_time(session))
        audit_log.append(session, "client-revoked", actor=person.id, subject=client_id)
    wake()
