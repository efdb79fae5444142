"""The route of weights: stored or encoded bytes, whole or a range of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import bindparam, select

from coordinator.auth.authentication import Member, still_counts
from coordinator.auth.permissions import DownloadingMember
from coordinator.db.engine import Database, run
from coordinator.db.tables.federations import PayloadRow
from coordinator.errors import AuthMissing, Busy, NotFound, NotJoined, RangeUnsatisfiable, RateLimited
from coordinator.http.dependencies import database_of, metrics_of, server_key_of, settings_of
from coordinator.http.downloads import StoredBody, reply, requested_range
from coordinator.http.limits.concurrency import codec_slot, has_space, locks_of
from coordinator.http.params import RoundNumber
from coordinator.http.problems import answers
from coordinator.rounds import base_weights
from coordinator.rounds.base_weights import ServedWeights, Zeros
from coordinator.rounds.participations import count_download
from coordinator.settings import Settings
from coordinator.weights import store
from coordinator.weights.base_delta import whole_delta
from coordinator.weights.encoding import (
    DifferenceTo,
    EncodingRequest,
    encoded_weights,
    requested_form,
    sign_encoded,
)
from coordinator.weights.store import SERVED, ZEROS, EncodedKey
from schemas.messages.recipes import RecipeName
from schemas.wire.compress import compress_pieces
from schemas.wire.envelope import MEDIA_TYPE

router = APIRouter(prefix="/v1/federations/{fid}", tags=["weights"])
_DIGEST = select(PayloadRow.digest).where(PayloadRow.id == bindparam("payload"))


@dataclass(frozen=True, slots=True)
class _WeightsRequest:
    """A client, and the form of weights that it requests; None = as stored."""

    member: Member
    form: RecipeName | Literal["whole", "outputs"] | DifferenceTo | None


async def _weights_request(request: Request, member: DownloadingMember) -> AsyncIterator[_WeightsRequest]:
    """Parse the requested form. Encoding requests of one client are answered one at a time: the first stores
    the result for the rest, and a client occupies one decoding slot at most."""
    parsed = _WeightsRequest(member, requested_form(request.headers.get("accept", "")))
    if parsed.form is None:
        yield parsed
        return
    async with locks_of(request).hold(("weights", member.client_id)):
        yield parsed


@router.get(
    "/rounds/{n}/weights",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "The stored bytes"},
        206: {"content": {MEDIA_TYPE: {}}, "description": "The requested range"},
        304: {"description": "Not modified"},
        **answers(AuthMissing, NotFound, NotJoined, RangeUnsatisfiable, Busy, RateLimited),
    },
)
def get_weights(
    n: RoundNumber,
    request: Request,
    parsed: Annotated[_WeightsRequest, Depends(_weights_request, scope="function")],
) -> Response:
    """Return a client's weights for a round it has joined, or its final ones after the last round.

    Weights are dense unless the client sends
    `Accept: application/vnd.tessera.adapter+safetensors;recipe=<name>` (docs/reference/wire-format.md)
    and has an accepted update; `Tessera-Weights` is then a signed statement of the dense weights' digest.
    With `;against="<digest of its last weights>"` they are the published difference to those, if there is
    one, from which the client reconstructs the dense weights.
    With `;fold=whole`, weights with a base delta carry the sum of all base deltas so far, if that is
    stored, with the same statement. With `;outputs=peers` the answer is the mixture of other members'
    outputs that was published with the weights, and 404 if there is none.
    Rounds outside TESSERA_KEEP_ROUNDS have no weights.
    """
    member, form, database = parsed.member, parsed.form, database_of(request)
    with database.read() as session:
        served = store.served(session, member.federation_id, member.client_id, n)
    weights = served.weights
    if weights.payload_id is None:
        raise NotFound
    stored = StoredBody(
        weights.payload_id,
        weights.digest,
        weights.size,
        MEDIA_TYPE,
        head=weights.head or b"",
        begin=weights.begin,
    )
    encoded: StoredBody | None = None
    if isinstance(form, DifferenceTo):
        # No statement is signed: the reconstructed weights have the digest of the signed manifest.
        stored = published_difference(database, settings_of(request), member, weights, form) or stored
    elif form == "whole":
        with codec_slot():
            encoded = whole_delta(database, member, weights)
    elif form == "outputs":
        encoded = _mixture_beside(database, member, weights)
    elif form is not None:
        encoding = EncodingRequest(member, n, weights, weights.payload_id, form)
        encoded = encoded_weights(database, settings_of(request), encoding)
    headers = {"Vary": "Accept"}
    if encoded is not None:
        stored = encoded
        headers["Tessera-Weights"] = sign_encoded(member, n, weights, encoded.digest, server_key_of(request))
    part = requested_range(request.headers, stored)
    count_download(database, metrics_of(request), member.client_id, part.size, round_id=served.round_id)
    answer = reply(database, stored, part, partial(still_counts, caller=member))
    answer.headers.update(headers)
    return answer


def _mixture_beside(database: Database, member: Member, weights: ServedWeights) -> StoredBody:
    """Return the mixture of outputs that was published with some weights.

    Raises:
        NotFound: there is none.
    """
    key = EncodedKey(member.federation_id, member.client_id, weights.round_number, store.OUTPUTS)
    with database.read() as session:
        published = store.find_encoded(session, key)
    if published is None or published.stored is None:
        raise NotFound
    return published.stored


def published_difference(
    database: Database, settings: Settings, member: Member, weights: ServedWeights, request: DifferenceTo
) -> StoredBody | None:
    """Return the difference to the weights that a client has; None = it needs the weights as stored.

    Raises:
        Busy: too many requests are being encoded.
    """
    place = (member.federation_id, member.client_id, weights.round_number)
    with database.read() as session:
        earlier = base_weights.newest_reference(session, member.client_id, weights.round_number - 1)
        published = store.find_encoded(session, EncodedKey(*place, SERVED))
        stored = store.find_encoded(session, EncodedKey(*place, ZEROS))
        digest = run(session, _DIGEST, {"payload": weights.payload_id}).scalar()
    if earlier is not None and published is not None:
        return published.stored if request.digest == earlier.digest else None
    head = weights.head or b""
    # Before the first sum all clients are served zeros, which compress to almost nothing.
    zeros = Zeros(head, weights.size - len(head))
    if digest != zeros.digest:
        return None
    if stored is None and has_space(database, settings):
        with codec_slot():
            body = compress_pieces([head, *zeros.pieces()], weights.size)
            with database.write() as session:
                stored = store.store_encoded(session, EncodedKey(*place, ZEROS), body)
    return stored.stored if stored is not None else None
