"""The route of weights: stored bytes as they are, or in fewer bits, whole or a range of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response

from coordinator.auth.authentication import Member, still_counts
from coordinator.auth.permissions import DownloadingMember
from coordinator.errors import AuthMissing, Busy, NotFound, NotJoined, RangeUnsatisfiable, RateLimited
from coordinator.http.dependencies import database_of, metrics_of, server_key_of, settings_of
from coordinator.http.downloads import Stored, reply, requested_range
from coordinator.http.limits.concurrency import codec_slot, locks_of
from coordinator.http.params import RoundNumber
from coordinator.http.problems import answers
from coordinator.rounds.participations import sent_to
from coordinator.weights import store
from coordinator.weights.base_delta import instead_of
from coordinator.weights.compressed import Asked, asked_for, coded, signed
from schemas.messages.recipes import RecipeName
from schemas.wire.envelope import MEDIA_TYPE

router = APIRouter(prefix="/v1/federations/{federation_id}", tags=["weights"])


@dataclass(frozen=True, slots=True)
class _Wish:
    """Who wants weights, and in what: None = as they are stored."""

    member: Member
    form: RecipeName | Literal["whole"] | None


async def _wish(request: Request, member: DownloadingMember) -> AsyncIterator[_Wish]:
    """Read in what the weights are wanted. One such request of a client is answered at a time: the first of
    them writes what the others find, and who asks for much keeps one slot for it at most."""
    wish = _Wish(member, asked_for(request.headers.get("accept", "")))
    if wish.form is None:
        yield wish
        return
    async with locks_of(request).hold(("weights", member.client_id)):
        yield wish


@router.get(
    "/rounds/{n}/weights",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "The stored bytes"},
        206: {"content": {MEDIA_TYPE: {}}, "description": "The range that was asked for"},
        304: {"description": "You have them"},
        **answers(AuthMissing, NotFound, NotJoined, RangeUnsatisfiable, Busy, RateLimited),
    },
)
def get_weights(
    n: RoundNumber, request: Request, wish: Annotated[_Wish, Depends(_wish, scope="function")]
) -> Response:
    """Serve a client its weights of a round it has joined, or its final ones after the last round.

    They are dense unless it says `Accept: application/vnd.tessera.adapter+safetensors;recipe=<name>`
    (docs/wire-format.md) and has an update that counts; `Tessera-Weights` then proves which dense bytes they
    stand for. With `;fold=whole`, weights that add to a base model are all that was added so far, if that is
    kept, proved alike. Rounds that were thinned out (TESSERA_KEEP_ROUNDS) have none.
    """
    member, form, database = wish.member, wish.form, database_of(request)
    with database.read() as session:
        served = store.served(session, member.federation_id, member.client_id, n)
    weights = served.weights
    if weights.payload_id is None:
        raise NotFound
    stored = Stored(
        weights.payload_id,
        weights.digest,
        weights.size,
        MEDIA_TYPE,
        head=weights.head or b"",
        begin=weights.begin,
    )
    made: Stored | None = None
    if form == "whole":
        with codec_slot():
            made = instead_of(database, member, weights)
    elif form is not None:
        made = coded(database, settings_of(request), Asked(member, n, weights, weights.payload_id, form))
    headers = {"Vary": "Accept"}
    if made is not None:
        stored = made
        headers["Tessera-Weights"] = signed(member, n, weights, made.digest, server_key_of(request))
    part = requested_range(request.headers, stored)
    sent_to(database, metrics_of(request), member.client_id, part.size, round_id=served.round_id)
    answer = reply(database, stored, part, partial(still_counts, caller=member))
    answer.headers.update(headers)
    return answer
