"""Decide when a phase of a session ends: once all members that may answer have, or at its deadline. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.messages.secure_sum import SumTerms
from schemas.secure_sum.encoding import Modulus

Phase = Literal["keys", "shares", "masked", "confirm", "unmask"]
PHASES: tuple[Phase, ...] = ("keys", "shares", "masked", "confirm", "unmask")
Decision = Literal["close", "abort", "wait"]

# Members that have confirmed are waited for longer: a session that ends now has shown its masked vectors.
_UNMASKING_PATIENCE = 5

# The speed at which a masked vector is expected to arrive, beyond the seconds of its phase.
_BYTES_PER_SECOND = 10**6


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """The number of members that may answer in a phase, the number that have, and the phase's start."""

    phase: Phase
    expected: int
    answered: int
    opened_at: datetime


def decide(terms: SumTerms, facts: PhaseFacts, now: datetime) -> Decision:
    """Return whether a phase closes, its session aborts, or the members are waited for."""
    if facts.answered >= facts.expected:
        return "close" if facts.answered >= required(terms, facts.phase) else "abort"
    if (now - facts.opened_at).total_seconds() < patience(terms, facts.phase):
        return "wait"
    return "close" if facts.answered >= required(terms, facts.phase) else "abort"


def patience(terms: SumTerms, phase: Phase) -> float:
    """Return the seconds that a phase waits for members; those of `masked` grow with the vector."""
    if phase == "masked":
        packed = Modulus(terms.modulus).packed_bytes(terms.values)
        return terms.phase_seconds + packed / _BYTES_PER_SECOND
    return float(terms.phase_seconds * (_UNMASKING_PATIENCE if phase == "unmask" else 1))


def first_phase(terms: SumTerms) -> Phase:
    return "keys" if terms.masking == "pairwise" else "masked"


def following(terms: SumTerms, phase: Phase) -> Phase | None:
    """Return the phase after this one; None = the sum can be computed."""
    if terms.masking == "none" or phase == "unmask":
        return None
    return PHASES[PHASES.index(phase) + 1]


def preceding(terms: SumTerms, phase: Phase) -> Phase | None:
    """Return the phase before this one; None = all members of the terms may answer."""
    return None if phase == first_phase(terms) else PHASES[PHASES.index(phase) - 1]


def required(terms: SumTerms, phase: Phase) -> int:
    """Return the least number of answers with which a phase may close."""
    return terms.threshold if phase in ("confirm", "unmask") else max(terms.threshold, terms.minimum)
