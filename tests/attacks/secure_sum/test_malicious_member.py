"""Dishonest members: a refused message, a correct sum, or no opened sum."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.secure_sum import intake
from coordinator.secure_sum.unmasking import opened_keys, plain_sum
from schemas.identity.keys import encode
from schemas.messages.secure_sum import ConfirmStep, UnmaskStep
from schemas.secure_sum.encoding import Modulus
from schemas.secure_sum.errors import MessageRefused, SharesInconsistent, SumOutOfRange
from tests.scene.secure_sums import Session, inputs_of, session_until, terms_of


def test_confirmations_of_other_sets_or_members_are_refused() -> None:
    session = session_until(4, stops={4: 2})
    confirmation = session.members[0].confirm(session.shared[0], range(5))
    for position, step in ((0, confirmation), (1, session.confirmed[0]), (4, session.confirmed[0])):
        with pytest.raises(MessageRefused):
            intake.check_confirmation(session.terms, position, step, session.commitments(), session.masked)
    with pytest.raises(MessageRefused):
        intake.check_confirmation(
            session.terms, 0, ConfirmStep(signature="AAAA"), session.commitments(), session.masked
        )


def _with_bad_shares(session: Session, liars: list[int]) -> None:
    for liar in liars:
        shares = [
            share.model_copy(update={"share": encode(b"\x00" + bytes([liar + 1]) * 32)})
            for share in session.unmasked[liar].shares
        ]
        session.unmasked[liar] = UnmaskStep(shares=shares)


@pytest.mark.parametrize("liar", [0, 1, 2, 4, 5, 6, 7])
def test_a_bad_share_is_avoided_and_blamed(liar: int) -> None:
    session = session_until(5, members=8, stops={3: 2})
    _with_bad_shares(session, [liar])
    opened = opened_keys(
        session.terms, session.keys, session.commitments(), frozenset(session.masked), session.unmasked
    )
    assert opened.blamed <= {liar}
    assert opened.blamed or liar == 7  # the first six shares of seven work without the last one
    assert np.array_equal(session.open(), session.expected())


def test_a_bad_share_among_t_opens_nothing() -> None:
    session = session_until(5, stops={4: 2})
    _with_bad_shares(session, [1])
    with pytest.raises(SharesInconsistent):
        session.open()


def test_shares_of_another_secret_open_nothing() -> None:
    """A member distributes shares of another secret than it committed to: it cannot make others be blamed."""
    session = session_until(1)
    for n in range(5):
        session.keyed[n] = session.members[n].accept_keys(intake.keys_answer(session.keys), session.keys[n])
        session.own[n] = session.members[n].shares(session.keyed[n])
        session.shares[n] = session.own[n].step
    second_session = Session(terms_of(5), inputs_of(5))
    forged = session.shares[2].model_copy(
        update={"commitment": second_session.members[2].shares(session.keyed[2]).step.commitment}
    )
    session.shares[2] = forged
    session.own[2] = type(session.own[2])(forged, session.own[2].mask_share, session.own[2].seed_share)
    session.step_masked()
    session.step_confirm()
    session.step_unmask()
    with pytest.raises(SharesInconsistent, match="member 2"):
        session.open()


def test_an_impossible_sum_is_refused() -> None:
    session = session_until(2)
    modulus = Modulus(session.terms.modulus)
    words = [np.full(20, 2**22, modulus.word), *(np.zeros(20, modulus.word) for _ in range(4))]
    with pytest.raises(SumOutOfRange):
        list(plain_sum(session.terms, 5, [[modulus.pack(word) for word in words]]))
