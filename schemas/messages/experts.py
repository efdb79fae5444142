"""The views of a bank of experts for people and clients: its experts, its rounds, and reasons of changes."""

from __future__ import annotations

from typing import Literal

from schemas.messages.base import Strict
from schemas.messages.updates import Count, Manifest

ExpertStatus = Literal["active", "archived", "merged"]
"""An expert is `active`, or it has ended: `archived` since too few members used it, or `merged`."""

ExpertChange = Literal["born", "pruned", "merged"]


class ExpertManifest(Manifest):
    """The manifest of an expert's values after `round`, which is the number of its revision.

    A body is the same for all clients of the federation.
    """

    kind: Literal["expert"] = "expert"
    round: Count
    expert: Count


class ExpertEvent(Strict):
    """A change of a bank after a round, with its reason and the numbers that it rests on."""

    change: ExpertChange
    """The change of the expert."""
    round: int
    """The number of the round after which it happened."""
    expert: int
    """The ordinal of the expert."""
    peer: int | None
    """The expert that it began as, 0 for the shared one, or that it was merged into; null if pruned."""
    reason: str
    """The reason, as a sentence."""
    numbers: dict[str, float]
    """The numbers of the reason, by name."""


class ExpertView(Strict):
    """An expert of a bank beside the shared one, which is what `weights` serves."""

    expert: int
    """The ordinal of the expert, from 1; it is never used again."""
    status: ExpertStatus
    """Whether the expert is active, and how it ended otherwise."""
    born: int
    """The round after which it was born; 0 = before the first."""
    ended: int | None
    """The round after which it was archived or merged; null while it is active."""
    parent: int | None
    """The expert that it began as, 0 for the shared one; null for those of the beginning."""
    merged_into: int | None
    """The expert that it was merged into; null if it was not merged."""
    prior: float
    """Its share of the prior over active experts; 0 unless it is active."""
    utilisation: float | None
    """The moving average of the share of members that use it; null before its first counts."""
    revision: int
    """The round that changed its values last; 0 = none yet, and it is drawn from the plan's seed."""
    digest: str | None
    """The digest of the newest revision as it is downloaded; null without one."""
    bytes: int
    """The size of that download; 0 without one."""


class BankRoundView(Strict):
    """The counts of a summed round: how many members used each expert, and how many none of them fits."""

    round: int
    """The number of the round."""
    members: int
    """The number of members that were counted."""
    users: dict[str, int]
    """The number of members that used each expert, by its ordinal."""
    rejects: int
    """The number of members that no expert fits."""


class BankView(Strict):
    """A bank of experts: all of its experts, and a page of its rounds with their changes.

    All three are empty if the strategy has no bank. Nothing here is about one member.
    """

    experts: list[ExpertView]
    """All experts that ever were, in order, on every page."""
    rounds: list[BankRoundView]
    """The counts of summed rounds, newest first."""
    events: list[ExpertEvent]
    """The changes after these rounds: newest round first, those of one round in order."""
    next: str | None
    """The cursor of the next page of rounds, to be sent as `after`; null on the last."""
