"""Find the round, the current session, and the client's place in it, from the path of a request."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member
from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.errors import Forbidden, NotFound
from coordinator.rounds import store as rounds
from coordinator.secure_sum import store
from coordinator.secure_sum.errors import PhaseMismatch
from coordinator.secure_sum.phases import PHASES, Phase
from coordinator.secure_sum.session_terms import terms_of
from schemas.messages.secure_sum import SumTerms

_MISSED = "this client missed a step, and takes no further part in this session; wait for the outcome"
_NO_SESSION = "the round has no session of a sum now; GET .../secure-sum waits for one"


@dataclass(frozen=True, slots=True)
class StepAddress:
    """The path of a step: round, session, and the number of the step."""

    round_number: int
    session: int
    step: int

    @property
    def phase(self) -> Phase:
        return PHASES[self.step]


@dataclass(frozen=True, slots=True)
class Place:
    """A member's place in the current session."""

    round: RoundRow
    session: SumSessionRow
    terms: SumTerms
    position: int


def require_signing(member: Member) -> None:
    """Check that a client has a key: others cannot sign the messages of a sum.

    Raises:
        Forbidden: it sends a bearer credential.
    """
    if member.public_key is None:
        raise Forbidden("clients with a bearer credential take part in no secure sum; enrol with a key")


def find_place(session: Session, member: Member, address: StepAddress) -> Place:
    """Return a client's place in the session of a path.

    Raises:
        NotFound: there is no such round, or the client is not a member of the session.
        PhaseMismatch: the session has ended, or never was; the error names the one that goes on.
    """
    row = rounds.get_round(session, member.federation_id, address.round_number)
    summed = store.newest(session, row.id) if row.state == "summing" else None
    # A member that is behind learns the current session and step, and goes on there.
    if summed is None or not store.is_live(summed) or summed.number != address.session:
        raise mismatch(summed)
    position = store.position_of(session, summed.id, member.client_id)
    if position is None:
        raise NotFound
    return Place(row, summed, terms_of(summed), position)


def require_in(place: Place, phase: Phase | None) -> None:
    """Check that a member answered a phase in time; None = all members did.

    Raises:
        PhaseMismatch: it did not, and is not waited for any more.
    """
    if phase is not None and place.position not in (store.closed_set(place.session, phase) or ()):
        raise mismatch(place.session, _MISSED)


def mismatch(summed: SumSessionRow | None, detail: str | None = None) -> PhaseMismatch:
    """Return the error that names the current session and its step; null without one."""
    if summed is None or not store.is_live(summed):
        return PhaseMismatch(detail or _NO_SESSION, session=None, step=None)
    return PhaseMismatch(detail, session=summed.number, step=store.step_of(summed))
