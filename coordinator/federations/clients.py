"""Routes about the clients of a federation, and the client's own view of itself."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request

from coordinator.auth.authentication import Member
from coordinator.auth.permissions import AnyMember, AsAuditor, AsAuditorOfClient, AsOperator, AsReader
from coordinator.enrolment import roster
from coordinator.enrolment.store import unused_tokens
from coordinator.errors import AuthMissing, Forbidden, Invalid, NotFound, RateLimited
from coordinator.federations import store
from coordinator.federations.layouts import layout_of
from coordinator.http.dependencies import TheDatabase
from coordinator.http.limits.poll_rate import PollRate
from coordinator.http.params import DEFAULT_LIMIT, After, ClientId, FederationId, Limit
from coordinator.http.problems import answers
from coordinator.strategies.opening import open_plan
from schemas.messages.enrolment import Client, ClientPage, Me, RosterPage, UnusedTokenPage

router = APIRouter(tags=["clients"])
_CURSOR = re.compile(r"[0-9]{1,9}")


@router.get("/v1/me", responses=answers(AuthMissing, Forbidden, RateLimited))
def who_am_i(member: AnyMember, request: Request, database: TheDatabase) -> Me:
    """Return the calling client's identity and adapter layout."""
    rate: PollRate = request.app.state.me_rate
    rate.take(member.client_id)
    with database.read() as session:
        row = store.client(session, member.federation_id, member.client_id)
        opened = open_plan(store.plan_of(store.federation(session, member.federation_id)))
        selected = store.pack_selected(session, member.federation_id, member.base_model)
        return Me.model_validate(
            {
                "client_id": row.id,
                "name": row.name,
                "organisation": row.organisation,
                "federation_id": row.federation_id,
                "state": row.state,
                "layout": layout_of(opened, member.profile, selected),
            }
        )


@router.get("/v1/federations/{fid}/roster", responses=answers(AuthMissing, NotFound, Invalid))
def show_roster(
    caller: AsReader,
    federation_id: FederationId,
    database: TheDatabase,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> RosterPage:
    """Return the roster, entry by entry; clients see it only if the plan has them check it."""
    with database.read() as session:
        plan = store.plan_of(store.federation(session, federation_id))
        # Members of a sum need each other's keys under any policy.
        is_private = plan.privacy.roster_policy == "server" and plan.privacy.secure_sum is None
        if isinstance(caller, Member) and is_private:
            raise NotFound
        if after is not None and not _CURSOR.fullmatch(after):
            raise Invalid("after: not a cursor of the roster; use `next` of the previous page", field="after")
        return roster.page(session, federation_id, after=int(after or 0), limit=limit)


@router.get("/v1/federations/{fid}/clients", responses=answers(AuthMissing, Forbidden, NotFound))
def list_clients(
    _: AsAuditor,
    federation_id: FederationId,
    database: TheDatabase,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> ClientPage:
    """List the clients of a federation in order of enrolment."""
    with database.read() as session:
        store.federation(session, federation_id)
        return store.clients(session, federation_id, after=after, limit=limit)


@router.get(
    "/v1/federations/{fid}/enrolment-tokens",
    tags=["enrolment"],
    responses=answers(AuthMissing, Forbidden, NotFound),
)
def list_unused_tokens(
    _: AsOperator,
    federation_id: FederationId,
    database: TheDatabase,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> UnusedTokenPage:
    """List the enrolment tokens that may still be used, oldest first, without their secrets."""
    with database.read() as session:
        store.federation(session, federation_id)
        return unused_tokens(session, federation_id, after=after, limit=limit)


@router.get("/v1/federations/{fid}/clients/{cid}", responses=answers(AuthMissing, Forbidden, NotFound))
def show_client(
    _: AsAuditorOfClient, federation_id: FederationId, client_id: ClientId, database: TheDatabase
) -> Client:
    """Return one client."""
    with database.read() as session:
        return store.client_details(session, federation_id, client_id)
