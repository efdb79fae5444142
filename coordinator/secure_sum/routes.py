"""Routes of the secure sum: its status, a member's message of a step, and the answer to a step."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member, still_member
from coordinator.auth.permissions import AsMember
from coordinator.errors import (
    AuthMissing,
    BodyTooLarge,
    Busy,
    ContentEncodingRefused,
    DigestMismatch,
    DigestMissing,
    Forbidden,
    Invalid,
    JsonMalformed,
    MediaTypeRefused,
    NoSecureSum,
    NotFound,
    RateLimited,
    RequestTimeout,
    StorageFull,
    UploadConflict,
    WeakPublicKey,
)
from coordinator.http.dependencies import database_of, metrics_of, server_key_of, settings_of
from coordinator.http.json_body import read_json
from coordinator.http.limits.concurrency import locks_of, require_space
from coordinator.http.limits.poll_rate import PollRate, answered_in_turn
from coordinator.http.params import RoundNumber
from coordinator.http.problems import answers
from coordinator.http.uploads import ReceivedBody, receive
from coordinator.observability.logs import bind, logger
from coordinator.rounds.lifecycle import retry_after
from coordinator.rounds.long_poll import MAX_WAIT_SECONDS, WaitOutcome, long_polls_of, seconds_of
from coordinator.rounds.notifications import Wake
from coordinator.rounds.queries import FederationProgress, fetch_progress
from coordinator.secure_sum.accept import STEP_MESSAGES, accept_json, accept_masked, masked_bytes
from coordinator.secure_sum.addresses import StepAddress, require_signing
from coordinator.secure_sum.answers import ANSWERED_STEPS, answer, status
from coordinator.secure_sum.errors import (
    MaskedVector,
    PhaseMismatch,
    ShareInvalid,
    ShareList,
    StatementInvalid,
)
from coordinator.secure_sum.phases import PHASES
from schemas.messages.secure_sum import (
    ConfirmAnswer,
    KeysAnswer,
    MaskedAnswer,
    SharesAnswer,
    StepReceipt,
    SumStatus,
)

router = APIRouter(prefix="/v1/federations/{fid}/rounds/{n}/secure-sum", tags=["secure sum"])

OCTETS = "application/octet-stream"
SUM_POLLS_AT_ONCE = 40
"""Polls of a client that may come at once: the phases of a few sessions can follow each other in seconds."""

_JSON_BYTES = {"keys": 2**12, "shares": 2**15, "confirm": 2**12, "unmask": 2**15}
_PREFER = (
    "`wait=N` (RFC 7240): delay the response until there is an answer, "
    f"for N seconds, {MAX_WAIT_SECONDS} at most"
)
_NOT_YET: dict[int | str, dict[str, Any]] = {
    204: {
        "description": "There is no answer yet; repeat the request after `Retry-After` seconds",
        "headers": {"Retry-After": {"schema": {"type": "integer"}}},
    }
}
_EXAMPLE = {"signature": "c2lnbmF0dXJl"}
_STEP_BODY = {
    "requestBody": {
        "required": True,
        "description": f"Steps 0, 1, 3 and 4 as strict JSON; step 2, the masked vector, as `{OCTETS}` with"
        " `Content-Digest`, of exactly the length that the terms give it.",
        "content": {
            "application/json": {
                "schema": {
                    "oneOf": [
                        kind.model_json_schema(ref_template="#/components/schemas/{model}")
                        for kind in STEP_MESSAGES.values()
                    ]
                },
                "example": _EXAMPLE,
            },
            OCTETS: {},
        },
    }
}

log = logger(__name__)
Answer = TypeVar("Answer")

Prefer = Annotated[str | None, Header(description=_PREFER, examples=["wait=30"])]
SessionNumber = Annotated[int, Path(alias="session", ge=1, lt=2**31, description="Number of the session.")]
Step = Annotated[int, Path(ge=0, lt=len(PHASES), description="Step, 0 to 4.")]
AnsweredStep = Annotated[int, Path(alias="step", ge=0, lt=ANSWERED_STEPS, description="Step, 0 to 3.")]


async def _signing_member(member: AsMember) -> Member:
    require_signing(member)
    return member


AsSigningMember = Annotated[Member, Depends(_signing_member)]
"""A client of the federation in the path that signs its requests."""


@router.get(
    "",
    response_model=SumStatus,
    responses={**_NOT_YET, **answers(AuthMissing, Forbidden, NotFound, NoSecureSum, RateLimited)},
)
async def sum_status(
    request: Request,
    member: AsSigningMember,
    n: RoundNumber,
    known_phase: Annotated[
        int | None,
        Query(alias="seen", ge=0, lt=2**31, description="`phase` of the last answer; wait for another."),
    ] = None,
    prefer: Prefer = None,
) -> SumStatus | Response:
    """Return the status of a round's sum, once it is in another phase than the one `seen`.

    The terms are those of the current session, for its members; `outcome` is set when the sum has ended.
    """
    bind(round=n)
    answer_or_end = await _poll(
        request, member, prefer, lambda session: status(session, member, n, known_phase)
    )
    return answer_or_end if isinstance(answer_or_end, SumStatus) else _not_yet(request, answer_or_end)


@router.get(
    "/{session}/{step}",
    response_class=Response,
    responses={
        200: {"model": KeysAnswer | SharesAnswer | MaskedAnswer | ConfirmAnswer},
        **_NOT_YET,
        **answers(AuthMissing, Forbidden, NotFound, PhaseMismatch, RateLimited),
    },
)
async def step_answer(
    request: Request,
    member: AsSigningMember,
    n: RoundNumber,
    number: SessionNumber,
    step: AnsweredStep,
    prefer: Prefer = None,
) -> Response:
    """Return the messages of a step once it has closed; of step 1, the part for this member."""
    bind(round=n)
    address = StepAddress(n, number, step)
    answer_or_end = await _poll(request, member, prefer, lambda session: answer(session, member, address))
    if isinstance(answer_or_end, bytes):
        return Response(answer_or_end, media_type="application/json")
    return _not_yet(request, answer_or_end)


@dataclass(frozen=True, slots=True)
class _ReceivedStep:
    """A member's message as received: JSON as bytes, a masked vector as a file."""

    member: Member
    address: StepAddress
    body: bytes | ReceivedBody


async def _received(
    request: Request, member: AsSigningMember, n: RoundNumber, number: SessionNumber, step: Step
) -> AsyncIterator[_ReceivedStep]:
    """Receive a message; masked vectors one at a time per client, and none that cannot be accepted."""
    require_space(request)
    bind(round=n)
    address = StepAddress(n, number, step)
    if address.phase != "masked":
        yield _ReceivedStep(member, address, await read_json(request, _JSON_BYTES[address.phase]))
        return
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ContentEncodingRefused(accepts=["identity"])
    # One at a time: a client must not fill the disk with copies of one vector.
    async with locks_of(request).hold(("sum", member.client_id)):
        size = await to_thread.run_sync(masked_bytes, database_of(request), member, address)
        async with receive(request, max_bytes=size, media_types={OCTETS}) as octets:
            yield _ReceivedStep(member, address, octets)


@router.put(
    "/{session}/{step}",
    status_code=201,
    openapi_extra=_STEP_BODY,
    responses={
        200: {"model": StepReceipt, "description": "The same bytes were accepted before"},
        **answers(AuthMissing, Forbidden, NotFound, JsonMalformed, DigestMissing, DigestMismatch),
        **answers(MediaTypeRefused, ContentEncodingRefused, BodyTooLarge, PhaseMismatch, UploadConflict),
        **answers(WeakPublicKey, ShareList, MaskedVector, StatementInvalid, ShareInvalid, Invalid),
        **answers(RequestTimeout, RateLimited, Busy, StorageFull),
    },
)
async def put_step(
    received: Annotated[_ReceivedStep, Depends(_received, scope="function")],
    request: Request,
    wake: Wake,
    response: Response,
) -> StepReceipt:
    """Store a member's message of a step. The same bytes return 200 and the same receipt.

    The step closes when all members that are waited for have sent it, and at its deadline.
    """
    member, address, body = received.member, received.address, received.body
    database, key = database_of(request), server_key_of(request)
    if isinstance(body, bytes):
        accepted = await to_thread.run_sync(accept_json, database, member, address, body, key)
    else:
        deliverers = request.app.state.deliverers
        accepted = await to_thread.run_sync(
            accept_masked, database, member, address, body, key, limiter=deliverers
        )
    if accepted.has_moved:
        wake()
    if accepted.is_new:
        metrics_of(request).bytes_up.inc(len(body) if isinstance(body, bytes) else body.bytes)
        log.info("sum-message-accepted", session=address.session, step=address.phase)
    else:
        response.status_code = 200
    return accepted.receipt


async def _poll(
    request: Request, member: Member, prefer: str | None, fetch: Callable[[Session], Answer | None]
) -> Answer | WaitOutcome:
    """Return what `fetch` returns once it is not None, or why the wait for it ended."""
    polls: PollRate = request.app.state.sum_poll_rate
    async with answered_in_turn(request):
        polls.take(member.client_id)
    long_polls = long_polls_of(request)
    deadline = time.monotonic() + seconds_of(prefer)
    outcome: WaitOutcome = "released"
    while True:
        notifications = long_polls.notifications
        progress, fetched = await to_thread.run_sync(
            partial(_fetch, request, member, fetch), limiter=request.app.state.pollers
        )
        if fetched is not None:
            return fetched
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return outcome
        outcome = await long_polls.wait_for_change(member, progress, notifications, remaining)
        if outcome != "changed":
            return outcome


def _fetch(
    request: Request, member: Member, fetch: Callable[[Session], Answer | None]
) -> tuple[FederationProgress, Answer | None]:
    with database_of(request).read() as session:
        still_member(session, member)
        progress = fetch_progress(session, [member.federation_id])[member.federation_id]
        return progress, fetch(session)


def _not_yet(request: Request, outcome: WaitOutcome) -> Response:
    # A client that waited in full may poll at once; the retries of all others are spread.
    seconds = 0 if outcome == "waited" else retry_after(settings_of(request).retry_seconds, random.random())
    return Response(status_code=204, headers={"Retry-After": str(seconds)})
