"""Read a JSON body: after the caller is known, in bounded memory, strictly parsed, into a message.

A body that is not JSON is 400, one that is JSON but not the message is 422 with the name of the field. What
was sent is never repeated in an answer. A body of more than a few pages of text is parsed by another thread
than the one that serves everybody, and the faults of one that has many are not listed.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request
from pydantic import BaseModel, JsonValue, ValidationError
from starlette.requests import ClientDisconnect

from coordinator.errors import (
    BodyIncomplete,
    BodyOverran,
    BodyTooLarge,
    ContentEncodingRefused,
    DigestMismatch,
    DigestMissing,
    Invalid,
    JsonMalformed,
    MediaTypeRefused,
)
from coordinator.observability.logs import logger
from schemas.wire.digests import digest_of, from_field
from schemas.wire.strict_json import MalformedJson, loads

LIMIT_BYTES = 2**16
_AT_ONCE_BYTES = 2**12
MOST_FAULTS = 20
"""More are not listed: to list them costs more than to find them."""

MEDIA_TYPE = "application/json"

Message = TypeVar("Message", bound=BaseModel)
_OWN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
log = logger(__name__)


def json_body(message: type[Message], *, limit: int = LIMIT_BYTES) -> Callable[[Request], Awaitable[Message]]:
    """Make the dependency that reads a message; it stands behind the caller in a route's signature."""

    async def read(request: Request) -> Message:
        received = await _received(request, limit)
        if len(received) <= _AT_ONCE_BYTES:
            return parse(message, received)
        return await to_thread.run_sync(parse, message, received)

    return read


def parse(message: type[Message], body: bytes, *, under: str = "") -> Message:
    """Turn hostile bytes into a message; `under` is where they stood in what the caller sent.

    Raises:
        JsonMalformed: they are not strict JSON.
        Invalid: they are JSON, but not this message; true is not 1, and "1" is not either.
    """
    try:
        loads(body)
        return message.model_validate_json(body, strict=True)
    except MalformedJson as error:
        raise JsonMalformed from error
    except ValidationError as error:
        if error.error_count() > MOST_FAULTS:
            raise Invalid(f"more than {MOST_FAULTS} members are missing or wrong", field=under) from None
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        if faults[0]["type"] == "json_invalid":  # nested too deeply
            raise JsonMalformed from None
        raise invalid(faults, under=under) from None


def invalid(faults: Sequence[Mapping[str, Any]], *, under: str = "") -> Invalid:
    """Describe pydantic's faults without repeating any input."""
    named: list[JsonValue] = [
        {"field": _field(fault["loc"], under), "message": str(fault["msg"])} for fault in faults[:MOST_FAULTS]
    ]
    field, message = _field(faults[0]["loc"], under), str(faults[0]["msg"])
    return Invalid(f"{field}: {message}" if field else message, field=field, errors=named)


def takes(
    message: type[BaseModel], *, example: Mapping[str, Any], limit: int = LIMIT_BYTES
) -> dict[str, Any]:
    """Describe such a body in the OpenAPI document: `openapi_extra=takes(FederationPlan, example=...)`."""
    return {
        "requestBody": {
            "required": True,
            "description": f"At most {limit} bytes of strict JSON.",
            "content": {
                MEDIA_TYPE: {
                    "schema": message.model_json_schema(ref_template="#/components/schemas/{model}"),
                    "example": dict(example),
                }
            },
        }
    }


async def _received(request: Request, limit: int) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise MediaTypeRefused(accepts=[MEDIA_TYPE])
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ContentEncodingRefused(accepts=["identity"])
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise BodyTooLarge(limit=limit)
    received = bytearray()
    try:
        async for piece in request.stream():
            received += piece
            if len(received) > limit:
                raise BodyOverran(limit=limit)
    except ClientDisconnect as error:
        log.info("body-incomplete", received=len(received))
        raise BodyIncomplete from error
    _check_digest(request, received)
    return bytes(received)


def _check_digest(request: Request, received: bytearray) -> None:
    """Compare a body with its Content-Digest, if it has one; of a signed request it always has."""
    lines = request.headers.getlist("content-digest")
    if not lines:
        return
    expected = from_field(",".join(lines))
    if expected is None:
        raise DigestMissing
    if expected != digest_of(received):
        raise DigestMismatch


def _field(location: Sequence[int | str], under: str) -> str:
    """Name a member as a path, leaving out names that the caller made up beyond recognition."""
    parts = [str(part) for part in location if _OWN_NAME.fullmatch(str(part))]
    return ".".join([under, *parts] if under else parts)
