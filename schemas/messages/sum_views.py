"""The views of a round's secure sum for people: its sessions, and an event when one opens or ends."""

from __future__ import annotations

from typing import Literal

from schemas.messages.base import Strict
from schemas.messages.scores import Score
from schemas.messages.secure_sum import SumKind

SumState = Literal["keys", "shares", "masked", "confirm", "unmask", "opening", "done", "aborted"]
"""The states of a session: its open phase, `opening`, then `done` or `aborted`."""


class SumEvent(Strict):
    """A session of a sum was opened, or has ended; `members` are those of the sum once it is done."""

    round: int
    """The number of the round."""
    session: int
    """The number of the session."""
    kind: SumKind
    """The kind of values that the session sums."""
    state: SumState
    """The first phase, `done` or `aborted`."""
    members: int
    """The number of members; of those in the sum, if it is done."""
    reason: str | None
    """Why the session was aborted; null if it was not."""


class SumSessionView(Strict):
    """A session of a round's sum, for people."""

    number: int
    """The number of the session, from 1."""
    kind: SumKind
    """The kind of values that the session sums."""
    state: SumState
    """The open phase, `opening`, `done` or `aborted`."""
    members: int
    """The number of members."""
    answered: dict[str, int]
    """The number of members who answered each phase, by its name."""
    seconds: float
    """The duration of the session so far."""
    reason: str | None
    """Why the session was aborted; null if it was not."""


class SumView(Strict):
    """The secure sum of a round: its sessions, and the number of members in the sum, null before it.

    For a client, `losses` are present only if they are means over three other members, in three decimals.
    """

    sessions: list[SumSessionView]
    """The sessions in order."""
    counted: int | None
    """The number of members whose inputs are in the sum."""
    losses: dict[str, Score] | None = None
    """Mean losses of the members, of the model as `served` and as `trained`; null before the round is
    published, and if scores are not summed.
    """
