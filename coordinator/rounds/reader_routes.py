"""Routes that show rounds: in full to people, to clients as `member_views` restricts them."""

from __future__ import annotations

import re

from fastapi import APIRouter

from coordinator.auth.authentication import Member, Person
from coordinator.auth.permissions import AsReader
from coordinator.db.engine import database_time
from coordinator.errors import AuthMissing, Invalid, NotFound
from coordinator.federations import store as federations
from coordinator.http.dependencies import TheDatabase
from coordinator.http.params import DEFAULT_LIMIT, After, FederationId, Limit, RoundNumber
from coordinator.http.problems import answers
from coordinator.rounds import member_views, queries, store, views
from schemas.messages.rounds import RelevanceView, RoundPage, RoundView

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])

_CURSOR = re.compile(r"[0-9]{1,9}")


@router.get("/rounds", responses=answers(AuthMissing, NotFound, Invalid))
def list_rounds(
    reader: AsReader,
    federation_id: FederationId,
    database: TheDatabase,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> RoundPage:
    """List rounds, newest first. A client sees its own bytes, and mean scores of three others or more."""
    with database.read() as session:
        # 404 for a federation that does not exist, in place of an empty list.
        federations.federation(session, federation_id)
        if after is not None and not _CURSOR.fullmatch(after):
            raise Invalid("after: not a cursor of rounds; send the `next` of the page before", field="after")
        rows = queries.page(session, federation_id, before=int(after) if after else None, limit=limit + 1)
        now, client_id = database_time(session), _self(reader)
        return RoundPage(
            items=[
                views.summary(session, row, now)
                if client_id is None
                else member_views.summary(session, row, now, client_id)
                for row in rows[:limit]
            ],
            next=str(rows[limit - 1].number) if len(rows) > limit else None,
        )


@router.get("/rounds/{n}", responses=answers(AuthMissing, NotFound))
def show_round(
    reader: AsReader, federation_id: FederationId, n: RoundNumber, database: TheDatabase
) -> RoundView:
    """Show a round with its clients. A client sees its own entry only."""
    with database.read() as session:
        row, client_id = store.get_round(session, federation_id, n), _self(reader)
        if client_id is None:
            return views.view(session, row)
        return member_views.view(session, row, client_id)


@router.get("/rounds/{n}/relevance", responses=answers(AuthMissing, NotFound))
def show_relevance(
    reader: AsReader, federation_id: FederationId, n: RoundNumber, database: TheDatabase
) -> RelevanceView:
    """Show the relevance matrix of a published round. A client sees its own row only, in two decimals."""
    with database.read() as session:
        row, client_id = store.get_round(session, federation_id, n), _self(reader)
        if client_id is None:
            return views.relevance(session, row)
        return member_views.relevance(session, row, client_id)


def _self(reader: Person | Member) -> str | None:
    return reader.client_id if isinstance(reader, Member) else None
