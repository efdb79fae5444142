"""Answer a member with the messages of a closed phase, or with the status of a round's sum."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from pydantic import BaseModel
from sqlalchemy.orm import Session

from coordinator.auth.authentication import Member
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import RoundRow
from coordinator.db.tables.secure_sum import SumSessionRow
from coordinator.errors import NoSecureSum
from coordinator.federations.store import federation
from coordinator.rounds import store as rounds
from coordinator.secure_sum import intake, store
from coordinator.secure_sum.accept import closed_messages
from coordinator.secure_sum.addresses import Place, StepAddress, find_place, mismatch, require_in
from coordinator.secure_sum.counts import outcome_of
from coordinator.secure_sum.phases import patience
from coordinator.secure_sum.session_terms import once, terms_of
from schemas.messages.secure_sum import ConfirmStep, KeysStep, SharesStep, SumOutcome, SumStatus

ANSWERED_STEPS = 4
"""The last step has no answer: the outcome follows."""


def answer(session: Session, member: Member, address: StepAddress) -> bytes | None:
    """Return the answer of a step to a member as JSON; None while its phase has not closed.

    Raises:
        NotFound, PhaseMismatch: as `find_place`, or the member did not answer the step in time.
    """
    place, phase = find_place(session, member, address), address.phase
    if store.closed_set(place.session, phase) is None:
        if place.terms.masking == "none" and phase != "masked":
            raise mismatch(place.session)
        return None
    require_in(place, phase)
    if phase == "shares":  # each reader has an answer of its own
        keys = store.closed_set(place.session, "keys") or ()
        shares = closed_messages(session, place, "shares", SharesStep)
        return _json(intake.shares_answer(place.position, keys, shares))
    return once(place.session, f"{phase} answer", partial(_common_answer, session, place, address))


def _common_answer(session: Session, place: Place, address: StepAddress) -> bytes:
    """Return the answer that all members get alike."""
    match address.phase:
        case "keys":
            return _json(intake.keys_answer(closed_messages(session, place, "keys", KeysStep)))
        case "masked":
            sent = dict.fromkeys(store.closed_set(place.session, "masked") or (), None)
            inline = store.bodies(session, place.session.id, "masked")
            return _json(intake.masked_answer(place.terms, sent | inline))
        case "confirm":
            return _json(intake.confirm_answer(closed_messages(session, place, "confirm", ConfirmStep)))
        case _:
            raise LookupError(f"step {address.phase} has no answer that all members get")


def status(session: Session, member: Member, round_number: int, known_phase: int | None) -> SumStatus | None:
    """Return the status of a round's sum; None while the phase is `known_phase`.

    Raises:
        NotFound: there is no such round.
        NoSecureSum: the federation sums nothing.
    """
    federation_row = federation(session, member.federation_id)
    row = rounds.get_round(session, member.federation_id, round_number)
    if federation_row.plan["privacy"]["secure_sum"] is None:
        raise NoSecureSum
    summed = store.newest(session, row.id)
    outcome = _outcome(row, summed)
    if federation_row.sum_phase == known_phase and outcome is None:
        return None
    live = summed if row.state == "summing" and summed is not None and store.is_live(summed) else None
    is_member = live is not None and store.position_of(session, live.id, member.client_id) is not None
    terms = terms_of(live) if live is not None and is_member else None
    return SumStatus.model_validate(
        {
            "round": row.number,
            "phase": federation_row.sum_phase,
            "session": live.number if live is not None else None,
            "kind": live.kind if live is not None else None,
            "step": live.state if live is not None else None,
            "deadline": _deadline(live) if live is not None else None,
            "terms": terms,
            "counts": outcome_of(session, row.id) if terms is not None and terms.counts is not None else None,
            "outcome": outcome,
            "server_time": database_time(session),
        }
    )


def _deadline(summed: SumSessionRow) -> object:
    """Return the end of the open phase; None while the sum is computed."""
    step = store.step_of(summed)
    if step == "opening":
        return None
    return summed.phase_opened_at + timedelta(seconds=patience(terms_of(summed), step))


def _outcome(row: RoundRow, summed: SumSessionRow | None) -> SumOutcome | None:
    if row.state == "abandoned":
        return SumOutcome(state="abandoned", counted=None, reason=row.reason)
    if row.state == "summing" or summed is None or summed.state != "done":
        return None
    members = terms_of(summed).members
    counted = [members[position].client for position in store.closed_set(summed, "masked") or ()]
    return SumOutcome(state="summed", counted=counted, reason=None)


def _json(message: BaseModel) -> bytes:
    return message.model_dump_json().encode()
