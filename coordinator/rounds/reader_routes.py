"""The routes that show rounds: all of them to people, to a client what `member_views` leaves of them."""

from __future__ import annotations

import re

from fastapi import APIRouter

from coordinator.auth.authentication import Member, Person
from coordinator.auth.permissions import AsReader
from coordinator.db.engine import now
from coordinator.errors import AuthMissing, Invalid, NotFound
from coordinator.federations import store as federations
from coordinator.http.dependencies import TheDatabase
from coordinator.http.params import DEFAULT_LIMIT, After, FederationId, Limit, RoundNumber
from coordinator.http.problems import answers
from coordinator.rounds import member_views, queries, store, views
from schemas.messages.rounds import RelevanceView, RoundPage, RoundView

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])

_PLACE = re.compile(r"[0-9]{1,9}")


@router.get("/rounds", responses=answers(AuthMissing, NotFound, Invalid))
def list_rounds(
    reader: AsReader,
    fid: FederationId,
    database: TheDatabase,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> RoundPage:
    """List rounds, newest first; a client sees its own bytes, and scores of many clients only."""
    with database.read() as session:
        federations.federation(session, fid)
        if after is not None and not _PLACE.fullmatch(after):
            raise Invalid("after: not where a page of rounds ends", field="after")
        rows = queries.page(session, fid, before=int(after) if after else None, limit=limit + 1)
        moment, client_id = now(session), _self(reader)
        return RoundPage(
            items=[
                views.summary(session, row, moment)
                if client_id is None
                else member_views.summary(session, row, moment, client_id)
                for row in rows[:limit]
            ],
            next=str(rows[limit - 1].number) if len(rows) > limit else None,
        )


@router.get("/rounds/{n}", responses=answers(AuthMissing, NotFound))
def show_round(reader: AsReader, fid: FederationId, n: RoundNumber, database: TheDatabase) -> RoundView:
    """Show a round with its clients; a client sees itself only."""
    with database.read() as session:
        row, client_id = store.numbered(session, fid, n), _self(reader)
        if client_id is None:
            return views.view(session, row)
        return member_views.view(session, row, client_id)


@router.get("/rounds/{n}/relevance", responses=answers(AuthMissing, NotFound))
def show_relevance(
    reader: AsReader, fid: FederationId, n: RoundNumber, database: TheDatabase
) -> RelevanceView:
    """Show who listened to whom in a published round; a client sees its own row only, in two decimals."""
    with database.read() as session:
        row, client_id = store.numbered(session, fid, n), _self(reader)
        if client_id is None:
            return views.relevance(session, row)
        return member_views.relevance(session, row, client_id)


def _self(reader: Person | Member) -> str | None:
    return reader.client_id if isinstance(reader, Member) else None
