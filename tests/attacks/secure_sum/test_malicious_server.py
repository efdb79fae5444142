"""A dishonest server: honest members stop before their input can be revealed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_agent.secure_sum.expectation import accept_terms
from coordinator.secure_sum import intake
from schemas.identity.keys import decode, encode, name_of
from schemas.messages.secure_sum import ConfirmAnswer, KeysAnswer, MaskedAnswer, SharesAnswer
from schemas.secure_sum.agreement import new_secret_key
from schemas.secure_sum.errors import SessionAborted, TermsRefused
from schemas.secure_sum.statements import sign_keys
from schemas.secure_sum.terms import terms_hash
from tests.scene.secure_sums import (
    Session,
    expectation_of,
    identity,
    inputs_of,
    session_until,
    terms_of,
)

OTHER = f"sha256:{'1' * 64}"
GROUPED = [
    {"name": "x0.A", "values": 10, "clip": 1 << 20, "group": "x0"},
    {"name": "x1.A", "values": 10, "clip": 1 << 20, "group": "x1"},
]

TERMS: dict[str, dict[str, object]] = {
    "another format": {"format": "secure-sum-1"},
    "the format whose counts were not proved": {"format": "secure-sum-2"},
    "another federation": {"federation": "fed_2"},
    "another round": {"round": 2},
    "the same values as counts, so that a second sum can follow": {"kind": "counts"},
    "no masks": {"masking": "none"},
    "a choice among groups in a sum": {"choices": 2},
    "another plan, by which other members send zeros": {"plan": OTHER},
    "other weights": {"weights": OTHER},
    "an older roster": {"roster_version": 8},
    "another roster": {"roster_hash": OTHER},
    "a lower threshold": {"threshold": 3},
    "a lower minimum": {"minimum": 2},
    "fewer members than the minimum": {"minimum": 6},
    "a larger clip": {"segments": [{"name": "lora", "values": 20, "clip": 1 << 30}]},
    "other segments": {"segments": [{"name": "lora", "values": 21, "clip": 1 << 20}]},
    "a modulus that wraps": {"modulus": 16},
    "fewer bits": {"bits": 8},
    "counts that this member has not seen": {"counts": OTHER},
    "lost members without counts": {"lost": 1},
    "a group without counts": {"segments": GROUPED},
    "a client who is not in the roster": {
        "members": [{"client": f"cli_{n:03}", "key": name_of(identity(n))} for n in (0, 1, 2, 3, 9)]
    },
    "a key of the server's own for a member": {
        "members": [
            {"client": f"cli_{n:03}", "key": name_of(identity(77 if n == 4 else n))} for n in range(5)
        ]
    },
    "one key for two members": {
        "members": [{"client": f"cli_{n:03}", "key": name_of(identity(min(n, 3)))} for n in range(5)]
    },
}


@pytest.mark.parametrize("lie", TERMS)
def test_terms_that_contradict_a_member_are_refused(lie: str) -> None:
    honest = terms_of(5)
    with pytest.raises(TermsRefused):
        accept_terms(terms_of(5, **TERMS[lie]), expectation_of(honest, 0))


def test_terms_without_the_member_are_refused() -> None:
    with pytest.raises(TermsRefused, match="not among the members"):
        accept_terms(terms_of(5), expectation_of(terms_of(6), 5))


def test_terms_of_another_server_are_refused() -> None:
    terms = terms_of(5).model_copy(update={"signature": encode(bytes(64))})
    with pytest.raises(TermsRefused, match="not signed"):
        accept_terms(terms, expectation_of(terms, 0))


@pytest.mark.parametrize("kind", ["sum", "counts"])
def test_members_refuse_a_second_session_of_a_kind(kind: str) -> None:
    terms = terms_of(5, session=2, kind=kind)
    accept_terms(terms, expectation_of(terms, 0, kind=kind))
    with pytest.raises(TermsRefused, match="already"):
        accept_terms(terms, expectation_of(terms, 0, kind=kind, spent=frozenset({kind})))


def _keys(session: Session) -> KeysAnswer:
    return intake.keys_answer(session.keys)


def _without_own(session: Session) -> KeysAnswer:
    keys = {n: step for n, step in session.keys.items() if n != 0}
    return intake.keys_answer(keys)


def _too_few(session: Session) -> KeysAnswer:
    return intake.keys_answer({n: step for n, step in session.keys.items() if n < 3})


def _swapped(session: Session) -> KeysAnswer:
    """The server puts keys of its own in the place of a member's, signed by itself."""
    forged = sign_keys(
        terms_hash(session.terms), new_secret_key().public, new_secret_key().public, bytes(16), identity(77)
    )
    return intake.keys_answer({**session.keys, 4: forged})


def _of_another_session(session: Session) -> KeysAnswer:
    second_session = Session(terms_of(5, session=2), inputs_of(5)).run_steps(1)
    return intake.keys_answer({**session.keys, 4: second_session.keys[4]})


def _own_changed(session: Session) -> KeysAnswer:
    step = sign_keys(
        terms_hash(session.terms), new_secret_key().public, new_secret_key().public, bytes(16), identity(0)
    )
    return intake.keys_answer({**session.keys, 0: step})


def _repeated(session: Session) -> KeysAnswer:
    """A colluding member signs the keys of another one as its own."""
    step = session.keys[3]
    copy = session.members[4]
    forged = sign_keys(copy.accepted.digest, decode(step.c), decode(step.s), bytes(16), copy.identity)
    return intake.keys_answer({**session.keys, 4: forged})


def _weak(session: Session) -> KeysAnswer:
    forged = sign_keys(terms_hash(session.terms), bytes(32), new_secret_key().public, bytes(16), identity(4))
    return intake.keys_answer({**session.keys, 4: forged})


def _named_twice(session: Session) -> KeysAnswer:
    answer = _keys(session)
    return KeysAnswer(members=[*answer.members, 4], answers=[*answer.answers, answer.answers[4]])


@pytest.mark.parametrize(
    "lie",
    [_without_own, _too_few, _swapped, _of_another_session, _own_changed, _repeated, _weak, _named_twice],
)
def test_wrong_keys_end_a_members_part(lie: Callable[[Session], KeysAnswer]) -> None:
    session = session_until(1)
    session.members[0].accept_keys(_keys(session), session.keys[0])
    with pytest.raises(SessionAborted):
        session.members[0].accept_keys(lie(session), session.keys[0])


def test_shares_shown_under_other_keys_do_not_decrypt() -> None:
    """Members who were shown different sets of keys cannot exchange shares."""
    session = session_until(1)
    subset = {n: step for n, step in session.keys.items() if n != 4}
    for n in range(4):
        keys = subset if n == 3 else session.keys
        session.keyed[n] = session.members[n].accept_keys(intake.keys_answer(keys), session.keys[n])
        session.own[n] = session.members[n].shares(session.keyed[n])
        session.shares[n] = session.own[n].step
    commitments = [session.shares[n].commitment for n in range(4)]
    for_first = [None, *(session.shares[n].shares[0] for n in range(1, 4))]
    answer = SharesAnswer(members=[0, 1, 2, 3], commitments=commitments, shares=for_first)
    with pytest.raises(SessionAborted, match="do not decrypt"):
        session.members[0].accept_shares(answer, session.keyed[0], session.own[0])


def test_wrong_shares_end_a_members_part() -> None:
    session = session_until(2)
    answer = intake.shares_answer(0, session.keys, session.shares)
    member, keyed, own = session.members[0], session.keyed[0], session.own[0]
    member.accept_shares(answer, keyed, own)
    swapped = [answer.shares[0], answer.shares[2], answer.shares[1], *answer.shares[3:]]
    lies = [
        answer.model_copy(update={"shares": swapped}),
        answer.model_copy(update={"shares": [None] * 5}),
        answer.model_copy(update={"commitments": [answer.commitments[1], *answer.commitments[1:]]}),
        SharesAnswer(
            members=answer.members[1:], commitments=answer.commitments[1:], shares=answer.shares[1:]
        ),
        SharesAnswer(
            members=answer.members[:3], commitments=answer.commitments[:3], shares=answer.shares[:3]
        ),
        answer.model_copy(update={"members": [0, 1, 2, 3, 3]}),
    ]
    for lie in lies:
        with pytest.raises(SessionAborted):
            member.accept_shares(lie, keyed, own)


@pytest.mark.parametrize("members", [[1, 2, 3, 4], [0, 1], [0, 1, 2, 3, 5], [0, 1, 2, 2, 3]])
def test_wrong_sets_of_masked_vectors_are_refused(members: list[int]) -> None:
    session = session_until(3)
    with pytest.raises(SessionAborted):
        session.members[0].accept_masked(MaskedAnswer(members=members), session.shared[0])


def test_members_with_different_sets_do_not_unmask() -> None:
    """The server says to half of them that member 4 is lost, to obtain shares of both of its secrets."""
    session = session_until(3)
    for n in range(5):
        shown = [0, 1, 2, 3] if n < 2 else [0, 1, 2, 3, 4]
        masked = session.members[n].accept_masked(MaskedAnswer(members=shown), session.shared[n])
        session.confirmed[n] = session.members[n].confirm(session.shared[n], masked)
    for n in range(4):
        shown = [0, 1, 2, 3] if n < 2 else [0, 1, 2, 3, 4]
        answer = intake.confirm_answer({m: session.confirmed[m] for m in shown})
        with pytest.raises(SessionAborted, match="confirmed other sets"):
            session.members[n].unmask(answer, session.shared[n], shown)


def test_too_few_confirmations_do_not_unmask() -> None:
    session = session_until(4)
    whole = intake.confirm_answer(session.confirmed)
    few = ConfirmAnswer(members=whole.members[:3], answers=whole.answers[:3])
    repeated = ConfirmAnswer(members=[0, 1, 2, 2], answers=[*whole.answers[:3], whole.answers[2]])
    for answer in (few, repeated):
        with pytest.raises(SessionAborted):
            session.members[0].unmask(answer, session.shared[0], range(5))
