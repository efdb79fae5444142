"""Path and query parameters: ids, round numbers, pages. Paths keep the short names of the HTTP contract."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

_FORM = r"^[A-Za-z0-9_-]{1,64}$"
_FEDERATION: dict[str, Any] = {
    "description": "Federation id.",
    "examples": ["fed_0199b3a1c2d4a1b2c3d4e5f6"],
}

FederationId = Annotated[str, Path(alias="fid", pattern=_FORM, **_FEDERATION)]
"""`{fid}`"""

UncheckedFederationId = Annotated[str, Path(alias="fid", json_schema_extra={"pattern": _FORM}, **_FEDERATION)]
"""`{fid}` of a route that authenticates first and refuses malformed ids afterwards."""

ClientId = Annotated[
    str,
    Path(
        alias="cid",
        pattern=_FORM,
        description="Client id.",
        examples=["cli_0199b3a1c2d4a1b2c3d4e5f6"],
    ),
]
"""`{cid}`"""

TokenId = Annotated[
    str,
    Path(pattern=_FORM, description="Id of a person's token, not the secret."),
]
"""`{id}`"""

BaseModel = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$", description="Base model: slug with digest."),
]
"""`{base_model}`"""

RoundNumber = Annotated[int, Path(ge=1, lt=2**31, description="Round number, from 1.", examples=[1])]
"""`{n}`"""

After = Annotated[
    str | None,
    Query(pattern=_FORM, description="Cursor: `next` of the previous page; omit it for the first page."),
]
"""Cursor of a page; the default is None."""

Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]
"""The length of a page; the default is DEFAULT_LIMIT."""

DEFAULT_LIMIT = 100
