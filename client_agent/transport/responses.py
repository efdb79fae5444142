"""Parse the coordinator's responses: a message, a problem document, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from client_agent.errors import AnswerUnreadable, CoordinatorRefused, VersionMismatch
from schemas.messages.faults import complaints
from schemas.messages.rounds import NOT_DRAWN_FIELD
from schemas.problems import Problem, for_people

Message = TypeVar("Message", bound=BaseModel)


def read(kind: type[Message], answer: httpx.Response) -> Message:
    """Parse a message; ignore unknown members.

    Raises:
        AnswerUnreadable: the body does not match the message.
    """
    try:
        return kind.model_validate_json(answer.content, extra="ignore")
    except ValidationError as error:
        # Without the cause: pydantic's text repeats values of the answer, such as tokens.
        raise unreadable_answer(answer, error) from None


def unreadable_answer(answer: httpx.Response, error: ValidationError) -> AnswerUnreadable:
    """Build the error with the names of the invalid members, without their values, which may be secret."""
    return AnswerUnreadable(answer.request.url.path, _members(error))


def unreadable_brief(answer: httpx.Response, error: ValidationError) -> AnswerUnreadable | VersionMismatch:
    """Build the error: an answer that names round and state is a brief, of another version."""
    try:
        answered = answer.json()
    except ValueError:
        answered = None
    if isinstance(answered, dict) and {"round", "state"} <= answered.keys():
        return VersionMismatch(f"the coordinator's brief is of another version ({_members(error)})")
    return unreadable_answer(answer, error)


def _members(error: ValidationError) -> str:
    return complaints(error, None)


def require_success(answer: httpx.Response) -> httpx.Response:
    """Return a successful answer unchanged.

    Raises:
        CoordinatorRefused: the answer is a problem document, or an error without one.
    """
    if answer.is_success:
        return answer
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        reason = answer.reason_phrase
        # Redirects are not followed: a signature is valid for one address only.
        if answer.has_redirect_location:
            reason += f": set `url` to the address that {answer.headers['Location']} is below"
        raise CoordinatorRefused(answer.status_code, "", reason, answer.request.url.path) from None
    title = for_people(problem.title, answer.headers.get("Retry-After"))
    detail, expected = problem.detail or title, (problem.model_extra or {}).get("expected")
    named = expected if isinstance(expected, str) else None
    raise CoordinatorRefused(answer.status_code, problem.slug, detail, answer.request.url.path, named)


def is_refusal(answer: httpx.Response, slug: str) -> bool:
    if not answer.is_client_error:
        return False
    try:
        return Problem.model_validate_json(answer.content).slug == slug
    except ValidationError:
        return False


def retry_after(answer: httpx.Response) -> float | None:
    """Return Retry-After in seconds, or None; a Tessera coordinator never sends a date."""
    try:
        return max(0.0, float(answer.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class NoOpenRound:
    """No round is open for this client; poll again after `seconds`.

    `undrawn` is the open round for which other clients were drawn; None if there is none.
    """

    seconds: float
    undrawn: int | None = None


def nothing_yet(answer: httpx.Response) -> NoOpenRound:
    """Parse an answer without content to a poll."""
    pause, undrawn = retry_after(answer), answer.headers.get(NOT_DRAWN_FIELD, "")
    return NoOpenRound(
        # A proxy may drop the header, and a poll without any pause would be a busy loop.
        5.0 if pause is None else pause,
        int(undrawn) if undrawn.isascii() and undrawn.isdecimal() else None,
    )
