"""The routes of a bank of experts: its experts and changes, and the values of each revision."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from coordinator.auth.authentication import still_counts
from coordinator.auth.permissions import AsReader, DownloadingMember
from coordinator.errors import AuthMissing, Busy, Invalid, NotFound, RangeUnsatisfiable, RateLimited
from coordinator.experts.bodies import stored_revision
from coordinator.experts.views import bank_view
from coordinator.http.dependencies import TheDatabase, TheMetrics
from coordinator.http.downloads import reply, requested_range
from coordinator.http.params import DEFAULT_LIMIT, After, FederationId, Limit
from coordinator.http.problems import answers
from coordinator.rounds.participations import count_download
from schemas.messages.experts import BankView
from schemas.wire.envelope import MEDIA_TYPE

router = APIRouter(prefix="/v1/federations/{fid}/experts", tags=["experts"])

_CURSOR = re.compile(r"[0-9]{1,9}")

Ordinal = Annotated[int, Path(ge=1, lt=2**31, description="Ordinal of an expert, from 1.", examples=[3])]
Revision = Annotated[
    int, Path(ge=1, lt=2**31, description="Round that changed the expert's values.", examples=[7])
]


@router.get("", responses=answers(AuthMissing, NotFound, Invalid))
def show_bank(
    _: AsReader,
    federation_id: FederationId,
    database: TheDatabase,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> BankView:
    """Show the bank of experts: all experts, and the counts and changes of rounds, newest first.

    The pages are of rounds; all lists are empty if the strategy has no bank. Within a round no number is that
    of one member. Members see the same numbers: those of two rounds whose counted members differ can show
    which expert a newcomer uses.
    """
    if after is not None and not _CURSOR.fullmatch(after):
        raise Invalid("after: not a cursor of rounds; send the `next` of the page before", field="after")
    with database.read() as session:
        return bank_view(session, federation_id, before=int(after) if after else None, limit=limit)


@router.get(
    "/{expert}/{revision}",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "The stored bytes"},
        206: {"content": {MEDIA_TYPE: {}}, "description": "The requested range"},
        304: {"description": "Not modified"},
        **answers(AuthMissing, NotFound, RangeUnsatisfiable, Busy, RateLimited),
    },
)
def get_expert(
    member: DownloadingMember,
    expert: Ordinal,
    revision: Revision,
    request: Request,
    database: TheDatabase,
    metrics: TheMetrics,
) -> Response:
    """Return the values of an expert after a round that changed them, the same bytes for all clients.

    They never change, so a client downloads the revisions that it does not have. Revisions that were
    superseded before the rounds of TESSERA_KEEP_ROUNDS are not found; the newest of an expert stays.
    """
    with database.read() as session:
        stored = stored_revision(session, member.federation_id, expert, revision)
    part = requested_range(request.headers, stored)
    count_download(database, metrics, member.client_id, part.size)
    return reply(database, stored, part, partial(still_counts, caller=member))
