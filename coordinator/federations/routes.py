"""Routes that create and show federations; `coordinator.rounds` starts and ends their rounds."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from coordinator.auth.authentication import still_person
from coordinator.auth.permissions import AsAdmin, AsAuditor, AsOperator, AsPersonAnywhere
from coordinator.db.federation_lock import lock_federation
from coordinator.enrolment.names import NameLooksAlike
from coordinator.errors import (
    AuthMissing,
    FederationStateConflict,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
)
from coordinator.federations import removal, store
from coordinator.federations.new_plans import recommended_plan, resolved, sent_plan
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import takes
from coordinator.http.params import DEFAULT_LIMIT, After, FederationId, Limit
from coordinator.http.problems import answers
from coordinator.observability.logs import logger
from coordinator.storage import audit_log
from coordinator.strategies.opening import sentence, usable
from schemas.messages.federation_views import Federation, FederationPage
from schemas.messages.federations import FederationPlan
from schemas.messages.strategies import StrategyList, StrategyView

router = APIRouter(prefix="/v1/federations", tags=["federations"])
strategies_router = APIRouter(tags=["federations"])
log = logger(__name__)


@strategies_router.get("/v1/strategies", responses=answers(AuthMissing, Forbidden))
def list_strategies(_: AsPersonAnywhere) -> StrategyList:
    """List the strategies that a plan can name, each with a sentence and its recommended plan."""
    items = []
    for name in usable():
        try:
            items.append(StrategyView(name=name, summary=sentence(name), plan=recommended_plan(name)))
        except Exception:  # of an installed package, whatever it is: the other strategies stay usable
            log.warning("strategy-unusable", strategy=name, exc_info=True)
    return StrategyList(items=items)


@router.post(
    "",
    status_code=201,
    openapi_extra=takes(
        FederationPlan,
        example={"name": "clinics", "strategy": {"name": "fedmosaic", "options": {}}, "rounds": {"total": 6}},
    ),
    responses=answers(JsonMalformed, AuthMissing, Forbidden, NameLooksAlike, Invalid),
)
def create_federation(
    person: AsOperator,
    plan: Annotated[FederationPlan, Depends(sent_plan)],
    database: TheDatabase,
) -> Federation:
    """Create a federation; the plan is stored with its defaults filled in.

    The defaults are those of a plan, whatever its strategy; with `recommended` the strategy's come first.
    """
    complete = resolved(plan)
    with database.write() as session:
        still_person(session, person)
        row = store.create(session, complete)
        audit_log.append(
            session, "federation-created", actor=person.id, subject=row.id, reason=_how_summed(complete)
        )
        log.info("federation-created", federation=row.id, strategy=plan.strategy.name)
        return store.view(session, row)


@router.get("", responses=answers(AuthMissing, Forbidden))
def list_federations(
    person: AsPersonAnywhere, database: TheDatabase, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> FederationPage:
    """List federations in which the caller has a role, oldest first."""
    with database.read() as session:
        return store.page(session, after=after, limit=limit, only=person.federations)


@router.get("/{fid}", responses=answers(AuthMissing, Forbidden, NotFound))
def show_federation(_: AsAuditor, federation_id: FederationId, database: TheDatabase) -> Federation:
    """Return a federation with its resolved plan, current round and claims."""
    with database.read() as session:
        return store.view(session, store.federation(session, federation_id))


@router.delete(
    "/{fid}", status_code=204, responses=answers(AuthMissing, Forbidden, NotFound, FederationStateConflict)
)
def remove_federation(person: AsAdmin, federation_id: FederationId, database: TheDatabase) -> None:
    """Remove a federation that was never started, with its enrolments, anchor texts and packs.

    A federation with a round stays, and its record with it; finish it instead.
    """
    with database.write() as session:
        row = lock_federation(session, federation_id)
        still_person(session, person)
        name = row.name
        removal.remove(session, row)
        audit_log.append(session, "federation-removed", actor=person.id, subject=federation_id, reason=name)
        log.info("federation-removed", federation=federation_id)


def _how_summed(plan: FederationPlan) -> str | None:
    """Return for the audit log how updates are summed; None = clients send them in clear."""
    summed = plan.privacy.secure_sum
    if summed is None:
        return None
    return f"updates are summed: masking {summed.masking}, at least {summed.minimum} members"
