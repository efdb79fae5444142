"""The error body on the wire (RFC 9457), independent of framework and error classes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:tessera:problem:"
_PAUSE = "retry after Retry-After seconds"


def for_people(title: str, retry_after: str | None) -> str:
    """Return a title with the seconds of the Retry-After field in place of its name."""
    return title.replace(_PAUSE, f"retry in {retry_after} s" if retry_after else "retry later")


class Problem(BaseModel):
    """An error: `type` and facts for machines, `title` and `detail` for people."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Annotated[str, Field(pattern=rf"^{PREFIX}[a-z0-9-]+$")]
    title: str
    status: int
    detail: str | None = None

    @property
    def slug(self) -> str:
        """Return the last part of `type`, such as `round-closed`."""
        return self.type.removeprefix(PREFIX)
