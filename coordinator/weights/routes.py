"""The route of weights: stored bytes as they are, or in fewer bits, whole or a range of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from coordinator.downloads import Stored, reply, wanted
from coordinator.enrolment.auth import AsMember
from coordinator.errors import AuthMissing, Busy, NotFound, NotJoined, RangeUnsatisfiable
from coordinator.limits.uploads import decoder
from coordinator.paths import RoundNumber
from coordinator.problems import answers
from coordinator.rounds.traffic import sent_to
from coordinator.sessions import TheDatabase, TheMetrics, TheServerKey
from coordinator.weights import store
from coordinator.weights.coded import Asked, coded, recipe_wanted, signed, whole_wanted
from coordinator.weights.whole import instead_of
from schemas.wire.envelope import MEDIA_TYPE

router = APIRouter(prefix="/v1/federations/{fid}", tags=["weights"])


@router.get(
    "/rounds/{n}/weights",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: {}}, "description": "The stored bytes"},
        206: {"content": {MEDIA_TYPE: {}}, "description": "The range that was asked for"},
        304: {"description": "You have them"},
        **answers(AuthMissing, NotFound, NotJoined, RangeUnsatisfiable, Busy),
    },
)
def get_weights(
    member: AsMember,
    n: RoundNumber,
    request: Request,
    database: TheDatabase,
    metrics: TheMetrics,
    key: TheServerKey,
) -> Response:
    """Serve a client its weights of a round it has joined, or its final ones after the last round.

    They are dense unless it says `Accept: application/vnd.tessera.adapter+safetensors;recipe=<name>`
    (docs/wire-format.md) and has an update that counts; `Tessera-Weights` then proves which dense bytes they
    stand for. With `;fold=whole`, weights that add to a base model are all that was added so far, if that is
    kept, proved alike. Rounds that were thinned out (TESSERA_KEEP_ROUNDS) have none.
    """
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
    accept, proof = request.headers.get("accept", ""), None
    recipe = recipe_wanted(accept)
    if whole_wanted(accept):
        with decoder():
            everything = instead_of(database, member, weights)
        if everything is not None:
            stored, proof = everything, signed(member, n, weights, everything.digest, key)
    elif recipe is not None:
        with decoder():
            made = coded(database, Asked(member, n, weights, weights.payload_id, recipe), key)
        stored, proof = made if made is not None else (stored, None)
    part = wanted(request.headers, stored)
    sent_to(database, metrics, member.client_id, part.size, round_id=served.round_id)
    answer = reply(database, stored, part)
    answer.headers["Vary"] = "Accept"
    if proof is not None:
        answer.headers["Tessera-Weights"] = proof
    return answer
