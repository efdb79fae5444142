"""What people and clients see of a bank of experts: its experts, its rounds, and why it changed."""

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
    """What happened to the expert."""
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
