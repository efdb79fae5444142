"""Routes that start, pause and finish a federation and revoke a client. Each writes into the audit log."""

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
from schemas.messages.federation_views import Federation

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])
log = logger(__name__)


@router.post(
    "/start", responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict, AnchorsMissing)
)
def start_federation(
    person: AsOperator, federation_id: FederationId, database: TheDatabase, wake: Wake
) -> Federation:
    """Start a federation: open its first round, or resume after a pause."""
    with database.write() as session:
        row = _locked(session, federation_id, person)
        before = row.state
        transitions.start(session, row)
        _audit(session, row, "federation-started", person, before)
        shown = view(session, row)
    may_crash("start-committed")
    wake()
    return shown


@router.post("/pause", responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict))
def pause_federation(person: AsOperator, federation_id: FederationId, database: TheDatabase) -> Federation:
    """Pause a federation: the current round completes, and no new round opens until it is started again."""
    with database.write() as session:
        row = _locked(session, federation_id, person)
        before = row.state
        transitions.pause(session, row)
        _audit(session, row, "federation-paused", person, before)
        return view(session, row)


@router.post("/finish", responses=answers(AuthMissing, Forbidden, NotFound))
def finish_federation(
    person: AsOperator, federation_id: FederationId, database: TheDatabase, wake: Wake
) -> Federation:
    """Finish a federation permanently; its current round is abandoned."""
    with database.write() as session:
        row = _locked(session, federation_id, person)
        before = row.state
        transitions.finish(session, row)
        _audit(session, row, "federation-finished", person, before)
        shown = view(session, row)
    wake()
    return shown


def _locked(session: Session, federation_id: str, person: Person) -> FederationRow:
    row = lock_federation(session, federation_id)
    still_person(session, person)
    return row


def _audit(session: Session, row: FederationRow, event: audit_log.Event, person: Person, before: str) -> None:
    """Write an audit entry, unless a repeated request left the state as it was."""
    if row.state != before:
        audit_log.append(session, event, actor=person.id, subject=row.id)
        log.info(event, federation=row.id)


clients_router = APIRouter(tags=["clients"])


@clients_router.delete(
    "/v1/federations/{fid}/clients/{cid}",
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
    """Revoke a client at once. Updates that were accepted from it before still count.

    The alignment packs that it stored are deleted: updates that were trained with them no longer count, and
    the round in progress is abandoned. With `keep_packs` they stay, as if an operator had stored them.
    """
    with database.write() as session:
        federation = lock_federation(session, federation_id)
        still_person(session, person)
        # A repeated request changes nothing, and writes no second audit entry.
        if not revoke(session, federation_id, client_id):
            return
        shown = client_details(session, federation_id, client_id)
        event_log.append(session, federation_id, "client", shown.model_dump(mode="json"), client_id)
        log.info("client-revoked", federation=federation_id, client=client_id)
        if keep_packs:
            pack_voiding.adopt_packs_of(session, federation, client_id)
        else:
            pack_voiding.void_packs_of(session, federation, client_id)
        pack_voiding.delete_verdicts_of(session, federation_id, client_id)
        current = store.latest(session, federation_id)
        if current is not None:
            # The round may have waited for this client only.
            current = store.get_round(session, federation_id, current.number, lock=True)
            transitions.advance(session, current, database_time(session))
        audit_log.append(session, "client-revoked", actor=person.id, subject=client_id)
    wake()
