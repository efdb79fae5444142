"""Base classes and types of all messages: unknown members, UTC times, finite numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


class Strict(BaseModel):
    """A message that rejects unknown members, so that a misspelt option is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Lenient(BaseModel):
    """A message that ignores unknown members, so that older readers accept newer writers."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def field_error(message: str, *field: str) -> ValidationError:
    """Build the validation error of one field, for a validator of the whole message."""
    fault = InitErrorDetails(
        type=PydanticCustomError("wrong", "{what}", {"what": message}), loc=field, input=None
    )
    return ValidationError.from_exception_data("message", [fault])


def _to_utc(now: datetime) -> datetime:
    return now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)


def _rfc3339(now: datetime) -> str:
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


UtcTime = Annotated[
    datetime, AfterValidator(_to_utc), PlainSerializer(_rfc3339, return_type=str, when_used="json")
]
"""An RFC 3339 time in UTC."""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name: printable, at most 100 characters."""

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""`sha256:<hex>` of stored encoded bytes."""

BaseModelSlug = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The slug of a base model: a name and 12 hexadecimal digits of its weights' digest, `tiny-s-3f0c...`."""


def _require_digest(slug: str) -> str:
    if not re.search(r"-[0-9a-f]{12}$", slug):
        raise PydanticCustomError(
            "wrong",
            "must end with a hyphen and 12 hexadecimal digits; `tessera agent check` prints the slug",
        )
    return slug


SharedModelSlug = Annotated[BaseModelSlug, AfterValidator(_require_digest)]
"""The slug of a model that every agent loads, digest included."""
