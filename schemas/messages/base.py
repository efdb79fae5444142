"""How every message treats its input: strangers are refused, times are UTC, numbers are finite."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


class Strict(BaseModel):
    """A message whose unknown members are an error: a misspelt option must not be silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Lenient(BaseModel):
    """A message whose unknown members are ignored, so that older readers survive newer writers."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


def wrong(message: str, *field: str) -> ValidationError:
    """Blame one field from a validator of the whole message: `raise wrong("larger than ...", "quorum")`."""
    fault = InitErrorDetails(
        type=PydanticCustomError("wrong", "{what}", {"what": message}), loc=field, input=None
    )
    return ValidationError.from_exception_data("message", [fault])


def _to_utc(moment: datetime) -> datetime:
    """Read a naive time as UTC and move an aware one there."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


UtcTime = Annotated[
    datetime, AfterValidator(_to_utc), PlainSerializer(_rfc3339, return_type=str, when_used="json")
]
"""An RFC 3339 time in UTC."""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name that a person gave: printable, at most 100 characters."""

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""`sha256:<hex>` of stored encoded bytes."""

BaseModelSlug = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A base model's exact weights: a slug and 12 hexadecimal digits of their digest, `tiny-s-3f0c...`."""


def _names_weights(slug: str) -> str:
    if not re.search(r"-[0-9a-f]{12}$", slug):
        raise PydanticCustomError(
            "wrong",
            "a slug ends with a hyphen and 12 hexadecimal digits; `tessera agent check` prints a model's",
        )
    return slug


SharedModelSlug = Annotated[BaseModelSlug, AfterValidator(_names_weights)]
"""The slug of a model that everybody has to load: nobody could, were it no slug."""
