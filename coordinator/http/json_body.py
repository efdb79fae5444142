"""Read and parse a JSON body in bounded memory, after authentication: 400 if it is not strict JSON, 422
if it is not the message. Errors never repeat the input.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request
from pydantic import BaseModel, ValidationError
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
from schemas.messages.faults import MOST_FAULTS, faults_of
from schemas.wire.digests import digest_of, from_field
from schemas.wire.strict_json import MalformedJson, loads

LIMIT_BYTES = 2**16
_INLINE_BYTES = 2**12
MAX_FAULTS = MOST_FAULTS
"""Larger numbers of faults are not listed: rendering costs more than finding them."""

MEDIA_TYPE = "application/json"

Message = TypeVar("Message", bound=BaseModel)
_FIELD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
log = logger(__name__)


def json_body(message: type[Message], *, limit: int = LIMIT_BYTES) -> Callable[[Request], Awaitable[Message]]:
    """Return the dependency that reads a message; it follows the caller in a route's signature."""

    async def read(request: Request) -> Message:
        received = await read_json(request, limit)
        # Parsing a small body takes less time than switching threads.
        if len(received) <= _INLINE_BYTES:
            return parse(message, received)
        return await to_thread.run_sync(parse, message, received)

    return read


def parse(message: type[Message], body: bytes, *, under: str = "") -> Message:
    """Parse untrusted bytes into a message; `under` is the path of its parent field.

    Raises:
        JsonMalformed: the body is not strict JSON.
        Invalid: the JSON is not this message; types are strict: true is not 1, "1" is not 1.
    """
    try:
        # `loads` refuses what parsers read differently, such as repeated keys; pydantic accepts those.
        loads(body)
        return message.model_validate_json(body, strict=True)
    except MalformedJson as error:
        raise JsonMalformed from error
    except ValidationError as error:
        if error.error_count() > MAX_FAULTS:
            raise Invalid(
                f"more than {MAX_FAULTS} fields are missing or wrong; send a body that matches the schema",
                field=under,
            ) from None
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        if faults[0]["type"] == "json_invalid":  # nested too deeply
            raise JsonMalformed from None
        raise invalid(faults, message, under=under) from None


def invalid(
    faults: Sequence[Mapping[str, Any]], message: type[BaseModel] | None = None, *, under: str = ""
) -> Invalid:
    """Build the error of pydantic's faults, without any input."""
    described = faults_of(faults[:MAX_FAULTS], message)
    return Invalid.of([(_field(path, under), text) for path, text in described])


def takes(
    message: type[BaseModel], *, example: Mapping[str, Any], limit: int = LIMIT_BYTES
) -> dict[str, Any]:
    """Describe a body for OpenAPI: `openapi_extra=takes(FederationPlan, example=...)`."""
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


async def read_json(request: Request, limit: int) -> bytes:
    """Receive the bytes of a JSON body, which `parse` reads.

    Raises:
        MediaTypeRefused, ContentEncodingRefused: it is announced as something else.
        BodyTooLarge, BodyIncomplete, DigestMissing, DigestMismatch: it is not what was announced.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise MediaTypeRefused(accepts=[MEDIA_TYPE])
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ContentEncodingRefused(accepts=["identity"])
    announced = request.headers.get("content-length", "0")
    # Refused before anything is read, so that the connection stays usable.
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
    """Compare a body with its Content-Digest, which every signed request has."""
    lines = request.headers.getlist("content-digest")
    if not lines:
        return
    expected = from_field(",".join(lines))
    if expected is None:
        raise DigestMissing
    if expected != digest_of(received):
        raise DigestMismatch


def _field(path: str, under: str) -> str:
    """Return the path of a field, without names that are not plain identifiers."""
    parts = [part for part in path.split(".") if _FIELD_NAME.fullmatch(part)]
    return ".".join([under, *parts] if under else parts)
