"""Read what the coordinator answered: a message, a refusal, or something that is neither."""

from __future__ import annotations

from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from client_agent.errors import AnswerUnreadable, CoordinatorRefused
from schemas.problems import Problem

Message = TypeVar("Message", bound=BaseModel)


def read(kind: type[Message], answer: httpx.Response) -> Message:
    """Read a message, whatever further members it has.

    Raises:
        AnswerUnreadable: it is another one.
    """
    try:
        return kind.model_validate_json(answer.content, extra="ignore")
    except ValidationError as error:
        raise unreadable(answer, error) from None


def unreadable(answer: httpx.Response, error: ValidationError) -> AnswerUnreadable:
    """Say which members are wrong, never their values: the answer to an enrolment holds a secret."""
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    members = "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'all'}: {fault['msg']}" for fault in faults[:5]
    )
    return AnswerUnreadable(answer.request.url.path, members)


def accepted(answer: httpx.Response) -> httpx.Response:
    """Give a good answer back.

    Raises:
        CoordinatorRefused: it is a problem document, or an error without one.
    """
    if answer.is_success:
        return answer
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        raise CoordinatorRefused(
            answer.status_code, "", answer.reason_phrase, answer.request.url.path
        ) from None
    detail, expected = problem.detail or problem.title, (problem.model_extra or {}).get("expected")
    named = expected if isinstance(expected, str) else None
    raise CoordinatorRefused(answer.status_code, problem.slug, detail, answer.request.url.path, named)


def is_refusal(answer: httpx.Response, slug: str) -> bool:
    """Say whether an answer is a problem document of this kind."""
    if not answer.is_client_error:
        return False
    try:
        return Problem.model_validate_json(answer.content).slug == slug
    except ValidationError:
        return False


def retry_after(answer: httpx.Response) -> float | None:
    """Read Retry-After in seconds; a date, which our coordinator never sends, counts as none."""
    try:
        return max(0.0, float(answer.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
