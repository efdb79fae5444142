"""Take part in the sum of a round: session after session, step by step, until its outcome is known.

The journal decides what is sent: a stored message is sent again as it is, a missing one is made from stored
answers and stored before it is sent. So the drive can be stopped and repeated at any point.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.errors import CoordinatorRefused, SumRefused
from client_agent.secure_sum.calls import SumCalls
from client_agent.secure_sum.expectation import Expectation, accept_terms
from client_agent.secure_sum.journal import SumJournal
from client_agent.secure_sum.member import new_secrets
from client_agent.secure_sum.progress import SumProgress
from client_agent.secure_sum.session_steps import SessionSteps, steps_of
from client_agent.transport.responses import NoOpenRound
from schemas.identity.keys import name_of
from schemas.messages.secure_sum import STEPS, SumOutcome, SumStatus, SumStep, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.errors import SecureSumError, SessionAborted, TermsRefused

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 30
_PHASE_MISMATCH: Final = "phase-mismatch"
_MESSAGE_REFUSED: Final = frozenset({400, 409, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class SumTask:
    """The input and the connections of a member in the sum of a round.

    Attributes:
        values: returns the encoded input (D,) of a session's segments; `input_digest` is that of the file
            which has the input of all sessions.
        expect: returns this member's own view of a session, after the round's counts if there were any; it
            may fetch the roster at the terms' version.
        identity: the key that the roster has for this client.
        report: stores the progress for `tessera agent status`.
        sleep: waits between requests, and may raise Stopped.
    """

    calls: SumCalls
    journal: SumJournal
    values: Callable[[SumTerms], NDArray[np.int32]]
    input_digest: str
    expect: Callable[[SumTerms, SumCounts | None], Expectation]
    identity: Ed25519PrivateKey
    client: str
    report: Callable[[SumProgress], None]
    sleep: Callable[[float], None] = time.sleep


def take_part_in_sum(task: SumTask, round_number: int) -> SumOutcome:
    """Answer every step of every session until the sum has an outcome. Safe to interrupt and to repeat.

    Raises:
        Stopped: the agent was stopped.
        SumRefused: the coordinator's terms contradict this silo's plan, roster, weights or earlier terms.
        CoordinatorUnreachable, CoordinatorRefused, AnswerUnreadable: the connection failed.
    """
    phase: int | None = None
    session: _Session | None = None
    task.report(SumProgress.now(None, None, None))
    while True:
        status = task.calls.status(phase, _WAIT_SECONDS)
        if isinstance(status, NoOpenRound):
            task.sleep(status.seconds)
            continue
        if status.outcome is not None:
            # With the outcome no message is needed any more, and secrets must not outlive the sum.
            task.journal.end()
            return status.outcome
        phase = status.phase
        if status.session is None:
            continue
        if status.terms is None:
            _stand_aside(task, round_number, status.session)
            session = None
            continue
        try:
            terms = _checked(status.terms, status, round_number)
            # A failed session is replaced by one of the remaining members, with new keys.
            if session is None or session.terms != terms:
                session = _begin(task, terms, status.counts)
        except SumRefused as refusal:
            log.error("round %d: sum, session %d: %s", round_number, status.session, refusal)
            task.report(SumProgress.now(status.session, status.step, None, str(refusal)))
            raise
        pause = session.advance(status.step)
        if pause is not None:
            task.sleep(pause)
            # The answer to the step was not ready: the next status must come at once.
            phase = None


def _checked(terms: SumTerms, status: SumStatus, round_number: int) -> SumTerms:
    if terms.session != status.session or terms.round != round_number:
        raise SumRefused("the status of the sum has the terms of another session")
    return terms


def _stand_aside(task: SumTask, round_number: int, session: int) -> None:
    """Wait for the next session: the coordinator shows the terms of this one to its members only."""
    task.journal.end(before=session)
    log.debug(
        "round %d: sum, session %d has other members; waiting for the next session", round_number, session
    )
    task.report(SumProgress.now(session, None, None, "this client is not among its members"))


def _begin(task: SumTask, terms: SumTerms, counts: SumCounts | None) -> _Session:
    """Accept the terms of a session and make its keys, or stand aside.

    Raises:
        SumRefused: the terms contradict what this silo knows, or other terms of the same session.
    """
    task.journal.end(before=terms.session)
    session = _Session(task, terms)
    entry = next((member for member in terms.members if member.client == task.client), None)
    # This session itself may be spent already: then its last message is sent again.
    spent = task.journal.spent(current=terms)
    earlier = task.journal.open(counts.session) if counts is not None else None
    counted = earlier.counted if earlier is not None else None
    commitments = earlier.commitments if earlier is not None else None
    if entry is None:
        session.leave("this client is not among its members")
    elif entry.key != name_of(task.identity):
        session.leave("its terms have an earlier key of this client")
    elif terms.kind in spent:
        session.leave("this client has unmasked another session of the round, and unmasks one only")
    # Counts that others confirmed prove nothing to this member.
    elif counts is not None and counted is None and terms.masking == "pairwise":
        session.leave("this client has not confirmed which clients were counted, and cannot check the counts")
    else:
        expected = task.expect(terms, counts)
        session.open(replace(expected, spent=spent, counted=counted, commitments=commitments))
    return session


class _Session:
    """One session as this member takes part in it, from the step on that is due."""

    def __init__(self, task: SumTask, terms: SumTerms) -> None:
        self.terms = terms
        self._task = task
        self._journal = task.journal.open(terms.session)
        self._steps: SessionSteps | None = None
        self._began = time.monotonic()

    def open(self, expectation: Expectation) -> None:
        """Check the terms, and take up the journal of the session or begin it.

        Raises:
            SumRefused: the terms contradict what this silo knows, or other terms of the same session.
        """
        task, terms, journal = self._task, self.terms, self._journal
        try:
            # Before the first key: terms that single this member out must not receive any message.
            accepted = accept_terms(terms, expectation)
        except TermsRefused as refusal:
            file = task.journal.keep_refused(terms)
            raise SumRefused(f"{refusal} (stored in {file})") from refusal
        task.journal.keep_terms(terms)
        if expectation.counts is not None:
            task.journal.keep_counts(terms.round, expectation.counts)
        # An existing journal is continued: new keys for the same terms could unmask an earlier message.
        if not journal.exists:
            journal.begin(terms, task.input_digest, new_secrets() if terms.masking == "pairwise" else None)
            log.info(
                "round %d: sum, session %d of %d members begins",
                terms.round,
                terms.session,
                len(terms.members),
            )
        if (reason := journal.ended) is not None:
            self._report(None, reason)
            return
        try:
            self._steps = steps_of(
                accepted, expectation, task.identity, journal, task.values(terms), task.input_digest
            )
        except SessionAborted as refusal:
            self.leave(str(refusal))

    def leave(self, reason: str) -> None:
        """End this member's part in the session: nothing more is sent in it."""
        log.warning(
            "round %d: sum, session %d continues without this client (%s)",
            self.terms.round,
            self.terms.session,
            reason,
        )
        self._steps = None
        if self._journal.exists:
            self._journal.end(reason)
        self._report(None, reason)

    def advance(self, step: SumStep | None) -> float | None:
        """Send the message of the step that is due; return seconds to wait before asking again, or None."""
        if self._steps is None:
            return None
        if step is None or step == "opening":
            self._report(step)
            return None
        try:
            pause = self._fetch(self._steps.needed_answer(step))
            if pause is not None:
                return pause
            body = self._steps.message(step)
        except SecureSumError as refusal:
            self.leave(f"step {step}: {refusal}")
            return None
        except CoordinatorRefused as refusal:
            if refusal.slug != _PHASE_MISMATCH:
                raise
            self.leave(f"step {step}: the answer is for other members, or the session has ended")
            return None
        self._report(step)
        self._send(step, body)
        return None

    def _fetch(self, needed: int | None) -> float | None:
        """Store the answer to an earlier step, unless it is stored."""
        if needed is None or self._journal.received(needed) is not None or self._steps is None:
            return None
        answer = self._task.calls.answer(self.terms.session, needed)
        if isinstance(answer, NoOpenRound):
            return answer.seconds
        self._steps.require_readable(needed, answer)
        self._journal.store_received(needed, answer)
        return None

    def _send(self, step: SumStep, body: bytes) -> None:
        terms, began = self.terms, time.monotonic()
        place = terms.round, terms.session
        try:
            self._task.calls.put(terms.session, STEPS.index(step), body)
        except CoordinatorRefused as refusal:
            # Others are refusals of the client or of the moment: the message may be sent again.
            if refusal.status not in _MESSAGE_REFUSED:
                raise
            # The last shares are not needed once enough members have sent theirs.
            if refusal.slug == _PHASE_MISMATCH and step == STEPS[-1]:
                log.info("round %d: sum, session %d ended before this client's shares", *place)
            elif refusal.slug == _PHASE_MISMATCH:
                self.leave(f"step {step} was over before this client's message")
            else:
                self.leave(f"the coordinator refused step {step}: {refusal}")
            return
        log.info(
            "round %d: sum, session %d, step %s: %d bytes sent in %.2f s (%.1f s since the session began)",
            *place,
            step,
            len(body),
            time.monotonic() - began,
            time.monotonic() - self._began,
        )

    def _report(self, step: SumStep | None, reason: str | None = None) -> None:
        members = self._steps.members if self._steps is not None else len(self.terms.members)
        self._task.report(SumProgress.now(self.terms.session, step, members, reason))
