"""The routes of rounds: what a client has to do, its scores, how rounds are shown."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Request, Response
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member, looking, note_seen, recognise, still_member
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
    StorageFull,
)
from coordinator.federations import store as federations
from coordinator.http.dependencies import TheDatabase, database_of, server_key_of, settings_of
from coordinator.http.json_body import json_body, takes
from coordinator.http.limits.concurrency import HasSpace
from coordinator.http.limits.poll_rate import polls_of
from coordinator.http.params import FederationId, RoundNumber, UncheckedFederationId
from coordinator.http.problems import answers
from coordinator.rounds import base_weights, manifests, queries, store, transitions
from coordinator.rounds import scores as scores_of_rounds
from coordinator.rounds.lifecycle import Advice, advice, retry_after
from coordinator.rounds.long_poll import LONGEST_SECONDS, Ended, seconds_of, waiting_of
from coordinator.rounds.notifications import Change, Tell
from coordinator.rounds.queries import Situation
from coordinator.storage.server_key import ServerKey
from coordinator.strategies.opening import open_plan
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import FinishedBrief, RoundBrief, Scores, SignedDocument, WeightsReference
from schemas.messages.updates import WeightsManifest

router = APIRouter(prefix="/v1/federations/{federation_id}", tags=["rounds"])

_NOTHING_TO_DO: dict[int | str, dict[str, Any]] = {
    204: {
        "description": "Nothing to do for now; ask again after `Retry-After` seconds",
        "headers": {"Retry-After": {"schema": {"type": "integer"}}},
    }
}
_PREFER = (
    "`wait=N` (RFC 7240): when there is nothing to do, answer as soon as there is, "
    f"or after N seconds, {LONGEST_SECONDS} at most"
)
_METRICS = {"loss": 0.7, "perplexity": 2.01, "exact_match": 0.5}


@router.get(
    "/rounds/current",
    response_model=RoundBrief | FinishedBrief,
    responses={**_NOTHING_TO_DO, **answers(AuthMissing, Forbidden, NotFound, RateLimited)},
    openapi_extra=IDENTIFIED,
)
async def current_round(
    request: Request,
    federation_id: UncheckedFederationId,
    prefer: Annotated[str | None, Header(description=_PREFER, examples=["wait=30"])] = None,
) -> RoundBrief | FinishedBrief | Response:
    """Tell a client what it has to do now, or as soon as there is something within the time it waits."""
    waiting = waiting_of(request)
    wait = seconds_of(prefer)
    deadline = time.monotonic() + wait
    ended: Ended = "released"
    calls = waiting.calls
    member, told = await to_thread.run_sync(_first_look, request, federation_id, wait > 0)
    while isinstance(told, Situation):
        ended = await waiting.for_change(member, told, calls, deadline - time.monotonic())
        if ended != "changed":
            break
        calls = waiting.calls
        told = await to_thread.run_sync(_look_again, request, member)
    if isinstance(told, RoundBrief | FinishedBrief):
        return told
    # Who has waited in full may come back at once; those we send away come back one after the other.
    seconds = 0 if ended == "waited" else retry_after(settings_of(request).retry_seconds, random.random())
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
    """Give the federation's resolved plan in the very bytes whose digest every round's manifest has."""
    with database.read() as session:
        return Response(
            manifests.plan_bytes(federations.federation(session, federation_id).plan),
            media_type="application/json",
        )


@router.get("/rounds/{n}/manifest", responses=answers(AuthMissing, Forbidden, NotFound))
def show_manifest(member: AsMember, n: RoundNumber, database: TheDatabase) -> SignedDocument:
    """Give a client the signed manifest that it got when it joined a round."""
    with database.read() as session:
        told = manifests.of(session, member.client_id, n)
        if told is None:
            raise NotFound
        return told


@router.put(
    "/rounds/{n}/scores",
    status_code=204,
    openapi_extra=takes(Scores, example={"before": _METRICS, "after": _METRICS, "examples": 96}),
    responses=answers(
        *(JsonMalformed, AuthMissing, Forbidden, NotFound, NotJoined, RoundClosed, Invalid),
        *(RateLimited, StorageFull),
    ),
)
def put_scores(
    member: AsMember,
    n: RoundNumber,
    _: HasSpace,
    scores: Annotated[Scores, Depends(json_body(Scores))],
    database: TheDatabase,
    tell: Tell,
) -> None:
    """Store how good a client's model was before and after the round's local steps; the last ones win.

    The newest two published rounds take scores, and the rounds after them. A client may replace its scores of
    a round ten times, none after the federation's end.
    """
    with database.write() as session:
        last_event = hold_federation(session, member.federation_id)
        still_member(session, member)
        is_changed = scores_of_rounds.keep(
            session, member.federation_id, n, member.client_id, scores.model_dump(mode="json")
        )
    if is_changed:
        tell(Change(member.federation_id, n, last_event))


# The request that comes most often: who asks, and what it has to do, are found out in one change of threads
# and, when that is nothing, without a transaction.
def _first_look(
    request: Request, federation_id: str, waits: bool
) -> tuple[Member, RoundBrief | FinishedBrief | Situation | None]:
    """Recognise a client, and look what it has to do: a Situation if that is nothing and it waits."""
    with looking(request) as asked:
        member = member_of(federation_id, recognise(request, asked))
        read_once(request, member)  # before its bucket: a copied poll must not use that up
        polls_of(request).take(member.client_id)
        # First what a change is waited for of: each look sees its own state, and a round that opens between
        # the two must differ from it.
        situation = queries.situations(asked, [federation_id])[federation_id] if waits else None
        seen = queries.look(asked, federation_id, member.client_id)
        is_idle = _advice(seen) == "wait"
    note_seen(request, member)
    if is_idle:
        return member, situation
    with database_of(request).read() as session:
        said = _say(request, session, member, seen)
    return member, said()


def _look_again(request: Request, member: Member) -> RoundBrief | FinishedBrief | Situation:
    """Look what a client has to do that has waited since; a Situation if that is nothing."""
    federation_id = member.federation_id
    with database_of(request).read() as session:
        still_member(session, member)
        seen = queries.look(session, federation_id, member.client_id)
        if _advice(seen) == "wait":
            return queries.situations(session, [federation_id])[federation_id]
        said = _say(request, session, member, seen)
    return said()


def _advice(seen: queries.ClientRoundStatus) -> Advice:
    current = store.known_state(seen.state) if seen.state is not None else None
    return advice(transitions.known_state(seen.federation), current, delivered=seen.part == "arrived")


def _say(
    request: Request, session: Session, member: Member, seen: queries.ClientRoundStatus
) -> Callable[[], RoundBrief | FinishedBrief]:
    """Say what a client that has something to do has to do; what is given is for after the transaction."""
    federation_id = member.federation_id
    if _advice(seen) == "finished":
        finished = _finished(
            session, federations.federation(session, federation_id), member, server_key_of(request)
        )
        return lambda: finished
    if seen.number is None:
        raise LookupError("there is a round to take part in, and it has no number")
    now = database_time(session)
    plan = federations.plan(session, federation_id)
    base = _base(session, plan, seen.number, member)
    return lambda: _brief(seen, plan, base(), now)


def _brief(
    seen: queries.ClientRoundStatus, plan: FederationPlan, base: WeightsReference, now: datetime
) -> RoundBrief:
    return RoundBrief.model_validate(
        {
            "round": seen.number,
            "state": seen.state,
            "deadline": seen.deadline,
            "strategy": plan.strategy,
            "adapter": plan.adapter,
            "training": plan.training,
            "signature": plan.signature,
            "alignment": plan.alignment,
            "wire": plan.wire,
            "weights": base,
            "server_time": now,
        }
    )


def _base(
    session: Session, plan: FederationPlan, round_number: int, member: Member
) -> Callable[[], WeightsReference]:
    """Name the weights a client starts from; before it has joined, a newcomer is told of zeros.

    The name of zeros is their hash: what is given here computes it when the transaction has ended.
    """
    newest = base_weights.newest(session, member.client_id, round_number)
    if newest is not None:
        known = base_weights.reference(newest)
        return lambda: known
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


def _after_all(session: Session, row: FederationRow) -> int:
    """Number the final manifest after all rounds: one that was abandoned has manifests too."""
    newest = store.latest(session, row.id)
    return newest.number + 1 if newest is not None else 1


def _finished(session: Session, row: FederationRow, member: Member, key: ServerKey) -> FinishedBrief:
    _, last = store.published(session, row.id)
    newest = base_weights.newest(session, member.client_id)
    if newest is None:
        return FinishedBrief(state="finished", round=last + 1, weights=None, manifest=None)
    return FinishedBrief(
        state="finished",
        round=last + 1,
        weights=base_weights.reference(newest),
        manifest=manifests.final(session, row, member, _after_all(session, row), newest.digest, key),
    )
