"""Routes with which a client takes part: its current round, the plan, its manifest and its scores."""

from __future__ import annotations

import random
import time
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Request, Response

from coordinator.auth.authentication import Member, count_invalid_token, identify, record_seen, still_member
from coordinator.auth.permissions import IDENTIFIED, AsMember, AsReader, member_of, read_once
from coordinator.db.federation_lock import hold_federation
from coordinator.errors import (
    AuthMissing,
    CredentialInvalid,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    NotJoined,
    RateLimited,
    RoundClosed,
    SecureSumRequired,
    StorageFull,
)
from coordinator.federations import store as federations
from coordinator.http.dependencies import TheDatabase, database_of, settings_of
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.concurrency import HasSpace
from coordinator.http.limits.poll_rate import answered_in_turn, poll_rate_of
from coordinator.http.params import FederationId, RoundNumber, UncheckedFederationId
from coordinator.http.problems import answers
from coordinator.rounds import manifests, queries
from coordinator.rounds import scores as scores_of_rounds
from coordinator.rounds.briefs import action_of, prepare_brief
from coordinator.rounds.lifecycle import retry_after
from coordinator.rounds.long_poll import MAX_WAIT_SECONDS, WaitOutcome, long_polls_of, seconds_of
from coordinator.rounds.notifications import Change, Notify
from coordinator.rounds.queries import FederationProgress
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import (
    NOT_DRAWN_FIELD,
    FinishedBrief,
    RoundBrief,
    SignedDocument,
)
from schemas.messages.scores import Scores

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])

_NO_ACTION: dict[int | str, dict[str, Any]] = {
    204: {
        "description": "No action is due; repeat the request after `Retry-After` seconds",
        "headers": {
            "Retry-After": {"schema": {"type": "integer"}},
            NOT_DRAWN_FIELD: {
                "description": "The round for which other clients were drawn",
                "schema": {"type": "integer"},
            },
        },
    }
}
_PREFER = (
    "`wait=N` (RFC 7240): while no action is due, delay the response until one is, "
    f"for N seconds, {MAX_WAIT_SECONDS} at most"
)
_SCORES = {
    "loss": {"value": 0.7, "count": 96},
    "perplexity": {"value": 2.01, "count": 96},
    "exact_match": {"value": 0.5, "count": 96},
}


@router.get(
    "/rounds/current",
    response_model=RoundBrief | FinishedBrief,
    responses={**_NO_ACTION, **answers(AuthMissing, Forbidden, NotFound, RateLimited)},
    openapi_extra=IDENTIFIED,
)
async def current_round(
    request: Request,
    federation_id: UncheckedFederationId,
    prefer: Annotated[str | None, Header(description=_PREFER, examples=["wait=30"])] = None,
) -> RoundBrief | FinishedBrief | Response:
    """Return the round that a client should take part in, or wait for one as the `Prefer` header says."""
    long_polls = long_polls_of(request)
    wait = seconds_of(prefer)
    deadline = time.monotonic() + wait
    outcome: WaitOutcome = "released"
    notifications = long_polls.notifications
    pollers = request.app.state.pollers
    async with answered_in_turn(request):
        try:
            member, brief = await to_thread.run_sync(
                _authenticate_and_fetch, request, federation_id, wait > 0, limiter=pollers
            )
        except CredentialInvalid:
            # Counting writes: threads of polls that waited for the write lock would stop all polls.
            await to_thread.run_sync(count_invalid_token, request)
            raise
    while isinstance(brief, FederationProgress):
        remaining = deadline - time.monotonic()
        outcome = await long_polls.wait_for_change(member, brief, notifications, remaining)
        if outcome != "changed":
            break
        notifications = long_polls.notifications
        brief = await to_thread.run_sync(_fetch_again, request, member, limiter=pollers)
    if isinstance(brief, RoundBrief | FinishedBrief):
        return brief
    # A client that waited in full may poll at once; the retries of all others are spread.
    seconds = 0 if outcome == "waited" else retry_after(settings_of(request).retry_seconds, random.random())
    headers = {"Retry-After": str(seconds)}
    if (undrawn := getattr(request.state, "undrawn", None)) is not None:
        headers[NOT_DRAWN_FIELD] = str(undrawn)
    return Response(status_code=204, headers=headers)


@router.get(
    "/plan",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {"schema": FederationPlan.model_json_schema()}}},
        **answers(AuthMissing, NotFound),
    },
)
def show_plan(_: AsReader, federation_id: FederationId, database: TheDatabase) -> Response:
    """Return the federation's resolved plan, in the bytes whose digest each round's manifest contains."""
    with database.read() as session:
        return Response(
            manifests.plan_bytes(federations.federation(session, federation_id).plan),
            media_type="application/json",
        )


@router.get("/rounds/{n}/manifest", responses=answers(AuthMissing, Forbidden, NotFound))
def show_manifest(member: AsMember, n: RoundNumber, database: TheDatabase) -> SignedDocument:
    """Return the signed manifest that the client received when it joined a round."""
    with database.read() as session:
        manifest = manifests.get(session, member.client_id, n)
        if manifest is None:
            raise NotFound
        return manifest


@router.put(
    "/rounds/{n}/scores",
    status_code=204,
    openapi_extra=takes(Scores, example={"served": _SCORES, "trained": _SCORES, "kept": "trained"}),
    responses=answers(
        JsonMalformed,
        AuthMissing,
        Forbidden,
        NotFound,
        NotJoined,
        RoundClosed,
        Invalid,
        RateLimited,
        StorageFull,
        SecureSumRequired,
    ),
)
def put_scores(
    member: AsMember,
    n: RoundNumber,
    _: HasSpace,
    scores: Annotated[Scores, Depends(json_body(Scores))],
    database: TheDatabase,
    notify: Notify,
) -> None:
    """Store a client's scores of the weights served in a round and of its adapter after the local steps.

    `kept` names which of both is the client's personal model. The newest two published rounds and all later
    rounds accept scores. A client may replace its scores of a round ten times, and not after the federation
    is finished; then it may add `final`, the scores of the final weights, to its scores of the last published
    round, once. Where scores are summed (`privacy.secure_sum.scores`), none are accepted.
    """
    with database.write() as session:
        last_event = hold_federation(session, member.federation_id)
        still_member(session, member)
        is_changed = scores_of_rounds.store_scores(session, member.federation_id, n, member.client_id, scores)
    if is_changed:
        notify(Change(member.federation_id, n, last_event))


# The most frequent request: it changes threads once, and needs no transaction while no action is due.
def _authenticate_and_fetch(
    request: Request, federation_id: str, waits: bool
) -> tuple[Member, RoundBrief | FinishedBrief | FederationProgress | None]:
    """Authenticate a client and return its brief, or the progress to compare if it has to wait."""
    with database_of(request).autocommit() as connection:
        member = member_of(federation_id, identify(request, connection))
        read_once(request, member)  # before the rate limit, which a replayed poll must not use up
        poll_rate_of(request).take(member.client_id)
        # The progress comes first: each query sees its own snapshot, and a round that opens between the two
        # must differ from the progress that the client waits on.
        progress = queries.fetch_progress(connection, [federation_id])[federation_id] if waits else None
        status = queries.fetch_status(connection, federation_id, member.client_id)
        is_idle = action_of(status) == "wait"
    record_seen(request, member)
    if is_idle:
        return member, progress
    with database_of(request).read() as session:
        build = prepare_brief(request, session, member, status)
    return member, progress if build is None else build()


def _fetch_again(request: Request, member: Member) -> RoundBrief | FinishedBrief | FederationProgress:
    federation_id = member.federation_id
    request.state.undrawn = None
    with database_of(request).read() as session:
        still_member(session, member)
        status = queries.fetch_status(session, federation_id, member.client_id)
        if action_of(status) == "wait":
            return queries.fetch_progress(session, [federation_id])[federation_id]
        build = prepare_brief(request, session, member, status)
        if build is None:
            return queries.fetch_progress(session, [federation_id])[federation_id]
    return build()
