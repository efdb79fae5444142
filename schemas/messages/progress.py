"""The progress of a client's training inside a round, for people to read. It proves nothing."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.messages.base import Strict, UtcTime

_Steps = Annotated[int, Field(ge=0, le=10_000_000)]
_Number = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Progress(Strict):
    """The report of a client while it trains; a later report replaces it."""

    step: _Steps
    """The number of finished steps."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """The number of steps of the round."""
    loss: _Number | None = None
    """The training loss of the last step; null where losses are summed."""
    tokens_per_second: _Number
    """Tokens read in a second, since the round's training began or went on."""
    seconds_left: _Number
    """The estimated rest of the training."""


class ProgressView(Progress):
    """The newest report of a client."""

    at: UtcTime
    """The time at which it arrived."""
