"""The stored rows of a session of a sum, read directly from the database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache

from schemas.messages.secure_sum import SumTerms, UnmaskStep
from tests.faults.fault_simulation.fault_rates import ATTEMPTS, SumDrawn
from tests.faults.fault_simulation.replicas import LEASE_SECONDS

PHASES = ("keys", "shares", "masked", "confirm", "unmask")
ENDED = ("done", "aborted")
ORDER = (*PHASES, "opening", "done", "aborted")
SESSIONS = (
    "SELECT s.id, s.round_id, r.number, s.number, s.state, s.version, s.terms, s.phase_opened_at, s.closed,"
    " s.lease_token, s.lease_expires_at, s.total_payload_id, s.reason"
    " FROM sum_sessions s JOIN rounds r ON r.id = s.round_id ORDER BY s.id"
)
_PATIENCE = {"unmask": 5}


@dataclass(frozen=True)
class Summed:
    """A session's row; its terms and closed sets are JSON."""

    id: int
    round_id: int
    round: int
    number: int
    state: str
    version: int
    written_terms: str
    phase_opened_at: str
    written_closed: str
    lease_token: str | None
    lease_expires_at: str | None
    total_payload_id: int | None
    reason: str | None

    @cached_property
    def terms(self) -> SumTerms:
        return SumTerms.model_validate_json(self.written_terms)

    @cached_property
    def closed(self) -> dict[str, list[int]]:
        """The positions of those who answered each phase that has closed."""
        return {phase: closing["members"] for phase, closing in json.loads(self.written_closed).items()}

    @property
    def first_phase(self) -> str:
        return "keys" if self.terms.masking == "pairwise" else "masked"

    def client(self, position: int) -> str:
        return self.terms.members[position].client

    def invited(self, phase: str) -> set[int]:
        """Return the members that may answer a phase: those that answered the phase before."""
        if phase == self.first_phase:
            return set(range(len(self.terms.members)))
        return set(self.closed[PHASES[PHASES.index(phase) - 1]])

    def least(self, phase: str) -> int:
        terms = self.terms
        is_late = phase in ("confirm", "unmask")
        return terms.threshold if is_late else max(terms.threshold, terms.minimum)

    def patience(self, phase: str) -> float:
        terms = self.terms
        upload = terms.values * terms.modulus / 8e6 if phase == "masked" else 0.0
        return terms.phase_seconds * _PATIENCE.get(phase, 1) + upload


def longest_seconds(drawn: SumDrawn) -> float:
    """Return the longest time of a sum without faults, in seconds: all phases of all attempts.

    Counts that are taken are one session more.
    """
    sessions = ATTEMPTS + drawn.counts
    return (
        sessions * drawn.phase_seconds * sum(_PATIENCE.get(phase, 1) for phase in PHASES) + 3 * LEASE_SECONDS
    )


@lru_cache(maxsize=256)
def revealed(body: bytes) -> list[tuple[int, str]]:
    """Return the owners of the shares that a member reveals, by secret."""
    return [(share.position, share.of) for share in UnmaskStep.model_validate_json(body).shares]
