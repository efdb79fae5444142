"""The messages of a member in one session, made from the journal: each once, and from stored answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from client_agent.errors import AnswerUnreadable
from client_agent.secure_sum.expectation import AcceptedTerms, Expectation
from client_agent.secure_sum.member import KeySet, Member, OwnShares, ShareSet
from client_agent.secure_sum.session_journal import SessionJournal
from schemas.identity.keys import decode, encode
from schemas.messages.faults import complaints
from schemas.messages.secure_sum import (
    STEPS,
    ConfirmAnswer,
    KeysAnswer,
    KeysStep,
    MaskedAnswer,
    SharesAnswer,
    SumStep,
)
from schemas.secure_sum.count_proofs import summed_commitments
from schemas.secure_sum.encoding import Modulus
from schemas.secure_sum.errors import SecureSumError, SessionAborted

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)

_KEYS, _SHARES, _MASKED, _CONFIRM, _UNMASK = range(5)
_ANSWERS: Final[tuple[type[BaseModel], ...]] = (KeysAnswer, SharesAnswer, MaskedAnswer, ConfirmAnswer)


class SessionSteps(Protocol):
    """The messages of a member in a session."""

    @property
    def members(self) -> int:
        """The number of members that have answered all steps so far, as this member knows it."""

    def needed_answer(self, step: SumStep) -> int | None:
        """Return the step whose answer must be stored before the message of `step` is made."""

    def require_readable(self, step: int, answer: bytes) -> None:
        """Raise AnswerUnreadable unless an answer is of the step's form."""

    def message(self, step: SumStep) -> bytes:
        """Return the body of a step: the stored one, else a new one, stored before it is returned.

        Raises:
            SecureSumError: a check of the coordinator's answers failed, or an earlier step was missed.
        """


def steps_of(
    accepted: AcceptedTerms,
    expectation: Expectation,
    identity: Ed25519PrivateKey,
    journal: SessionJournal,
    values: NDArray[np.int32],
    input_digest: str,
) -> SessionSteps:
    """Return the messages of a session in progress.

    Raises:
        SessionAborted: the journal is of other terms or of another input.
    """
    if accepted.terms.masking == "none":
        journal.require(accepted.terms, input_digest)
        return _PlainSteps(accepted, journal, values)
    secrets = journal.secrets(accepted.terms, input_digest)
    return _MaskedSteps(Member(accepted, secrets, identity, expectation), journal, values)


@dataclass
class _MaskedSteps:
    """The five steps under pairwise masking; what the answers say is checked once and then remembered."""

    member: Member
    journal: SessionJournal
    values: NDArray[np.int32]

    def __post_init__(self) -> None:
        self.members = len(self.member.accepted.terms.members)

    def needed_answer(self, step: SumStep) -> int | None:
        number = STEPS.index(step)
        if number == _KEYS or self.journal.has_sent(number):
            return None
        # The step before was missed: the session continues without this member, which must leave it.
        if not self.journal.has_sent(number - 1):
            raise SessionAborted(f"this client did not answer step {STEPS[number - 1]} in time")
        return number - 1

    def require_readable(self, step: int, answer: bytes) -> None:
        try:
            _ANSWERS[step].model_validate_json(answer, extra="ignore")
        except ValidationError as error:
            raise AnswerUnreadable(
                f"step {STEPS[step]} of the sum", complaints(error, _ANSWERS[step])
            ) from error

    def message(self, step: SumStep) -> bytes:
        number = STEPS.index(step)
        if not self.journal.has_sent(number):
            body = self._make(number)
            if number == _UNMASK:
                # Unmasking is for good, and needs a mark that outlives the round's folder.
                self.journal.store_unmask(self.member.accepted.terms, body)
            else:
                self.journal.store_sent(number, body)
        return self.journal.sent(number)

    def _make(self, step: int) -> bytes:
        if step == _KEYS:
            return _json(self.member.keys())
        if step == _SHARES:
            return _json(self.own_shares.step)
        if step == _MASKED:
            return self.member.masked(self.values, self.keyed, self.shared)
        if step == _CONFIRM:
            terms = self.member.accepted.terms
            if terms.kind == "counts":
                clients = [terms.members[position].client for position in self.masked]
                # Before the confirmation is sent: the sum is checked against these clients later.
                self.journal.store_counted(clients, self._commitments())
            return _json(self.member.confirm(self.shared, self.masked))
        answer = self._answer(_CONFIRM, ConfirmAnswer)
        return _json(self.member.unmask(answer, self.shared, self.masked))

    @cached_property
    def keyed(self) -> KeySet:
        step = KeysStep.model_validate_json(self.journal.sent(_KEYS))
        keyed = self.member.accept_keys(self._answer(_KEYS, KeysAnswer), step)
        self._note(len(keyed.keys), "keys")
        return keyed

    @cached_property
    def own_shares(self) -> OwnShares:
        """The shares of this member's secrets: drawn once, and stored with their ciphertexts."""
        # Stored before the ciphertexts are sent: other shares of the same secret would be contradictory.
        shares = self.journal.own_shares()
        if shares is None:
            shares = self.member.shares(self.keyed)
            self.journal.store_own_shares(shares)
        return shares

    @cached_property
    def shared(self) -> ShareSet:
        shared = self.member.accept_shares(self._answer(_SHARES, SharesAnswer), self.keyed, self.own_shares)
        self._note(len(shared.commitments), "shares")
        return shared

    @cached_property
    def masked(self) -> tuple[int, ...]:
        masked = self.member.accept_masked(self._answer(_MASKED, MaskedAnswer), self.shared)
        self._note(len(masked), "masked vectors")
        return masked

    def _commitments(self) -> dict[str, str]:
        """Return the commitments to the counts of all members of U3 together, by group, base64url."""
        terms = self.member.accepted.terms
        inputs = self._answer(_MASKED, MaskedAnswer).inputs
        sums = summed_commitments(terms, [decode(message) for message in inputs])
        return {segment.name: encode(point) for segment, point in zip(terms.segments, sums, strict=True)}

    def _answer(self, step: int, kind: type[Answer]) -> Answer:
        stored = self.journal.received(step)
        if stored is None:
            raise SecureSumError(f"the answer to step {STEPS[step]} is not stored")
        return kind.model_validate_json(stored, extra="ignore")

    def _note(self, members: int, sent: str) -> None:
        terms = self.member.accepted.terms
        if members < self.members:
            log.warning(
                "round %d: sum, session %d: %d of %d members did not send their %s in time and dropped out; "
                "the sum continues with at least %d",
                terms.round,
                terms.session,
                self.members - members,
                self.members,
                sent,
                terms.threshold,
            )
        self.members = members


@dataclass(frozen=True)
class _PlainSteps:
    """The one step of `masking: none`: the encoded input in clear."""

    accepted: AcceptedTerms
    journal: SessionJournal
    values: NDArray[np.int32]

    @property
    def members(self) -> int:
        return len(self.accepted.terms.members)

    def needed_answer(self, step: SumStep) -> int | None:
        return None

    def require_readable(self, step: int, answer: bytes) -> None:
        raise AnswerUnreadable(f"step {STEPS[step]} of the sum", "a sum without masks has no such answer")

    def message(self, step: SumStep) -> bytes:
        if STEPS.index(step) != _MASKED:
            raise SessionAborted(f"a sum without masks has no step {step}")
        if not self.journal.has_sent(_MASKED):
            terms = self.accepted.terms
            if len(self.values) != terms.values:
                raise SecureSumError(f"the terms are for {terms.values} values, not {len(self.values)}")
            modulus = Modulus(terms.modulus)
            self.journal.store_sent(_MASKED, modulus.pack(self.values.astype(np.int64).astype(modulus.word)))
        return self.journal.sent(_MASKED)


def _json(step: BaseModel) -> bytes:
    return step.model_dump_json().encode()
