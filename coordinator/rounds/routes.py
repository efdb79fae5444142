"""Routes with which a client takes part: its current round, the plan, its manifest and its scores."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Request, Response
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member, auth_connection, identify, record_seen, still_member
from coordinator.auth.permissions import IDENTIFIED, AsMember, AsReader, member_of, read_once
from coordinator.db.engine import database_time
from coordinator.db.federation_lock import hold_federation
from coordinator.db.tables.federations import FederationRow
from coordinator.errors import (
    AuthMissing,
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
from coordinator.http.dependencies import TheDatabase, database_of, server_key_of, settings_of
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.concurrency import HasSpace
from coordinator.http.limits.poll_rate import answered_in_turn, poll_rate_of
from coordinator.http.params import FederationId, RoundNumber, UncheckedFederationId
from coordinator.http.problems import answers
from coordinator.rounds import base_weights, manifests, queries, store, transitions
from coordinator.rounds import scores as scores_of_rounds
from coordinator.rounds.lifecycle import DELIVERED, ClientAction, client_action, retry_after
from coordinator.rounds.long_poll import MAX_WAIT_SECONDS, WaitOutcome, long_polls_of, seconds_of
from coordinator.rounds.notifications import Change, Notify
from coordinator.rounds.queries import FederationProgress
from coordinator.storage.server_key import ServerKey
from coordinator.strategies.opening import open_plan
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import FinishedBrief, RoundBrief, SignedDocument, WeightsReference
from schemas.messages.scores import Scores
from schemas.messages.updates import WeightsManifest

router = APIRouter(prefix="/v1/federations/{fid}", tags=["rounds"])

_NO_ACTION: dict[int | str, dict[str, Any]] = {
    204: {
        "description": "No action is due; repeat the request after `Retry-After` seconds",
        "headers": {"Retry-After": {"schema": {"type": "integer"}}},
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
    async with answered_in_turn(request):
        member, brief = await to_thread.run_sync(_authenticate_and_fetch, request, federation_id, wait > 0)
    while isinstance(brief, FederationProgress):
        remaining = deadline - time.monotonic()
        outcome = await long_polls.wait_for_change(member, brief, notifications, remaining)
        if outcome != "changed":
            break
        notifications = long_polls.notifications
        brief = await to_thread.run_sync(_fetch_again, request, member)
    if isinstance(brief, RoundBrief | FinishedBrief):
        return brief
    # A client that waited in full may poll at once; the retries of all others are spread.
    seconds = 0 if outcome == "waited" else retry_after(settings_of(request).retry_seconds, random.random())
    return Response(status_code=204, headers={"Retry-After": str(seconds)})


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
        *(JsonMalformed, AuthMissing, Forbidden, NotFound, NotJoined, RoundClosed, Invalid),
        *(RateLimited, StorageFull, SecureSumRequired),
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
    with auth_connection(request) as connection:
        member = member_of(federation_id, identify(request, connection))
        read_once(request, member)  # before the rate limit, which a replayed poll must not use up
        poll_rate_of(request).take(member.client_id)
        # The progress comes first: each query sees its own snapshot, and a round that opens between the two
        # must differ from the progress that the client waits on.
        progress = queries.fetch_progress(connection, [federation_id])[federation_id] if waits else None
        status = queries.fetch_status(connection, federation_id, member.client_id)
        is_idle = _action(status) == "wait"
    record_seen(request, member)
    if is_idle:
        return member, progress
    with database_of(request).read() as session:
        build = _prepare_brief(request, session, member, status)
    return member, build()


def _fetch_again(request: Request, member: Member) -> RoundBrief | FinishedBrief | FederationProgress:
    federation_id = member.federation_id
    with database_of(request).read() as session:
        still_member(session, member)
        status = queries.fetch_status(session, federation_id, member.client_id)
        if _action(status) == "wait":
            return queries.fetch_progress(session, [federation_id])[federation_id]
        build = _prepare_brief(request, session, member, status)
    return build()


def _action(status: queries.ClientRoundStatus) -> ClientAction:
    federation, delivered = transitions.parse_state(status.federation), status.participation in DELIVERED
    current = store.parse_state(status.state) if status.state is not None else None
    return client_action(federation, current, delivered=delivered)


def _prepare_brief(
    request: Request, session: Session, member: Member, status: queries.ClientRoundStatus
) -> Callable[[], RoundBrief | FinishedBrief]:
    """Read the facts of a brief; return a function that builds it after the transaction has ended."""
    federation_id = member.federation_id
    if _action(status) == "finished":
        finished = _finished(
            session, federations.federation(session, federation_id), member, server_key_of(request)
        )
        return lambda: finished
    if status.round_number is None:
        raise LookupError("a round is open, and it has no number")
    now = database_time(session)
    plan = federations.plan(session, federation_id)
    base = _base(session, plan, status.round_number, member)
    return lambda: _brief(status, plan, base(), now)


def _brief(
    status: queries.ClientRoundStatus, plan: FederationPlan, base: WeightsReference, now: datetime
) -> RoundBrief:
    return RoundBrief.model_validate(
        {
            "round": status.round_number,
            "total_rounds": plan.rounds.total,
            "state": status.state,
            "deadline": status.deadline,
            "strategy": plan.strategy,
            "adapter": plan.adapter,
            "training": plan.training,
            "signature": plan.signature,
            "alignment": plan.alignment,
            "wire": plan.wire,
            "scores": plan.scores,
            "weights": base,
            "server_time": now,
        }
    )


def _base(
    session: Session, plan: FederationPlan, round_number: int, member: Member
) -> Callable[[], WeightsReference]:
    """Return a function that builds the reference of a client's weights, or of zeros for a new client.

    The reference of zeros is a hash over megabytes, so it is computed after the transaction.
    """
    served = base_weights.newest_reference(session, member.client_id, round_number)
    if served is not None:
        return lambda: served
    federation_id = member.federation_id
    layout = base_weights.layout(session, federation_id, open_plan(plan), member.base_model, member.profile)
    manifest = WeightsManifest(
        federation=federation_id,
        recipe={},
        round=round_number,
        client=member.client_id,
        pack=base_weights.pack_digest(session, federation_id, member.base_model),
    )
    return lambda: base_weights.zeros(layout, manifest)[0]


def _final_number(session: Session, row: FederationRow) -> int:
    """Return the final manifest's round number: after all rounds, as abandoned ones have manifests too."""
    newest = store.latest(session, row.id)
    return newest.number + 1 if newest is not None else 1


def _finished(session: Session, row: FederationRow, member: Member, key: ServerKey) -> FinishedBrief:
    _, last = store.published(session, row.id)
    newest = base_weights.newest_reference(session, member.client_id)
    if newest is None:
        return FinishedBrief(state="finished", round=last + 1, weights=None, manifest=None)
    return FinishedBrief(
        state="finished",
        round=last + 1,
        weights=newest,
        manifest=manifests.final(session, row, member, _final_number(session, row), newest.digest, key),
    )
