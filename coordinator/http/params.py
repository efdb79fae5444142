"""The names that stand in paths and queries: ids, round numbers, pages. A malformed one names nothing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

_FORM = r"^[A-Za-z0-9_-]{1,64}$"
_FEDERATION: dict[str, Any] = {
    "description": "A federation's id.",
    "examples": ["fed_0199b3a1c2d4a1b2c3d4e5f6"],
}

FederationId = Annotated[str, Path(pattern=_FORM, **_FEDERATION)]
"""`{fid}`"""

UncheckedFederationId = Annotated[str, Path(json_schema_extra={"pattern": _FORM}, **_FEDERATION)]
"""`{fid}`, for a route that finds out by itself who asks: until then, what is malformed is not answered."""

ClientId = Annotated[
    str,
    Path(
        pattern=_FORM,
        description="A client's id.",
        examples=["cli_0199b3a1c2d4a1b2c3d4e5f6"],
    ),
]
"""`{cid}`"""

TokenId = Annotated[
    str,
    Path(pattern=_FORM, description="The id of a person's token, never the token."),
]
"""`{id}`"""

BaseModel = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$", description="A base model's slug with its digest."),
]
"""`{base_model}`"""

RoundNumber = Annotated[int, Path(ge=1, lt=2**31, description="A round's number, from 1.", examples=[1])]
"""`{n}`"""

After = Annotated[
    str | None,
    Query(pattern=_FORM, description="`next` of the page before; nothing for the first page."),
]
"""Where a page starts; the default is None."""

Limit = Annotated[int, Query(ge=1, le=500, description="How many items at most.")]
"""The length of a page; the default is DEFAULT_LIMIT."""

DEFAULT_LIMIT = 100
