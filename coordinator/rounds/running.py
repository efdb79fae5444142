"""The routes with which people run a federation: start, pause, finish. Who did it is in the audit log."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.orm import Session

from coordinator import audit
from coordinator.crash import may_crash
from coordinator.dependencies import TheDatabase
from coordinator.enrolment.auth import AsOperator
from coordinator.enrolment.recognition import Person, still_person
from coordinator.errors import AnchorsMissing, AuthMissing, FederationStateConflict, Forbidden, NotFound
from coordinator.federations.store import view
from coordinator.locks import lock_federation
from coordinator.logs import logger
from coordinator.paths import FederationId
from coordinator.problems import answers
from coordinator.rounds import control
from coordinator.rounds.waking import Wake
from coordinator.tables import FederationRow
from schemas.messages.federations import Federation

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])
log = logger(__name__)


@router.post(
    "/start", responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict, AnchorsMissing)
)
def start_federation(person: AsOperator, fid: FederationId, database: TheDatabase, wake: Wake) -> Federation:
    """Open the first round, or go on after a pause."""
    with database.write() as session:
        row = _locked(session, fid, person)
        before = row.state
        control.start(session, row)
        _write_down(session, row, "federation-started", person, before)
        shown = view(session, row)
    may_crash("start-committed")
    wake()
    return shown


@router.post("/pause", responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict))
def pause_federation(person: AsOperator, fid: FederationId, database: TheDatabase) -> Federation:
    """Let the current round complete and open no other."""
    with database.write() as session:
        row = _locked(session, fid, person)
        before = row.state
        control.pause(session, row)
        _write_down(session, row, "federation-paused", person, before)
        return view(session, row)


@router.post("/finish", responses=answers(AuthMissing, Forbidden, NotFound))
def finish_federation(person: AsOperator, fid: FederationId, database: TheDatabase, wake: Wake) -> Federation:
    """End the federation for good; the current round is abandoned."""
    with database.write() as session:
        row = _locked(session, fid, person)
        before = row.state
        control.finish(session, row)
        _write_down(session, row, "federation-finished", person, before)
        shown = view(session, row)
    wake()
    return shown


def _locked(session: Session, fid: str, person: Person) -> FederationRow:
    row = lock_federation(session, fid)
    still_person(session, person)
    return row


def _write_down(
    session: Session, row: FederationRow, event: audit.Event, person: Person, before: str
) -> None:
    """Write into the audit log what changed; a repeated request changes nothing."""
    if row.state != before:
        audit.append(session, event, actor=person.id, subject=row.id)
        log.info(event, federation=row.id)
