"""When a phase of a session closes: as soon as all of the set before it have answered, or at its deadline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.messages.secure_sum import SumTerms

PHASES = ("keys", "shares", "masked", "confirm", "unmask")
Phase = Literal["keys", "shares", "masked", "confirm", "unmask"]
Decision = Literal["close", "abort", "wait"]

_UNMASKING_PATIENCE = 5
"""Members that have confirmed are waited for longer: a session that ends now has shown its masked vectors."""


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """How many members may answer in a phase, how many have, and since when it has been open."""

    phase: Phase
    expected: int
    answered: int
    opened_at: datetime


def decide(terms: SumTerms, facts: PhaseFacts, now: datetime) -> Decision:
    """Return whether a phase closes, its session aborts, or the members are waited for."""
    if facts.answered >= facts.expected:
        return "close" if facts.answered >= required(terms, facts.phase) else "abort"
    seconds = terms.phase_seconds * (_UNMASKING_PATIENCE if facts.phase == "unmask" else 1)
    if (now - facts.opened_at).total_seconds() < seconds:
        return "wait"
    return "close" if facts.answered >= required(terms, facts.phase) else "abort"


def required(terms: SumTerms, phase: Phase) -> int:
    """Return the least number of answers with which a phase may close."""
    return terms.threshold if phase in ("confirm", "unmask") else max(terms.threshold, terms.minimum)
