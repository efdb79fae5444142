"""The outcome of a round's counts: the counted members, and the number of members of each group."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.messages.base import Strict


class SumCounts(Strict):
    """The counts of a round, which the terms of its sums name by their digest. They are taken once."""

    session: Annotated[int, Field(ge=1)]
    """The number of the session that took them."""
    counted: Annotated[list[str], Field(min_length=1)]
    """The ids of the clients that were counted, sorted."""
    groups: Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """The number of members of each group."""
    openings: Annotated[dict[str, str], Field(max_length=200)] | None = None
    """For each group the sum of the members' blindings, base64url: the sum of their commitments is one to the
    count under it. Null without masks.
    """

    @property
    def members(self) -> int:
        """The number of counted members."""
        return len(self.counted)
