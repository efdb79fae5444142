"""The error body on the wire (RFC 9457). Knows no framework and no error class."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:tessera:problem:"


class Problem(BaseModel):
    """What went wrong, for machines (`type`, facts) and for people (`title`, `detail`)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Annotated[str, Field(pattern=rf"^{PREFIX}[a-z0-9-]+$")]
    title: str
    status: int
    detail: str | None = None

    @property
    def slug(self) -> str:
        """The last part of `type`: `round-closed`."""
        return self.type.removeprefix(PREFIX)
