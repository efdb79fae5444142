"""Members that lie: their message is rejected, or the sum is right, or nothing is opened."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.secure_sum import intake
from coordinator.secure_sum.unmasking import opened_keys, plain_sum
from schemas.identity.keys import decode, encode
from schemas.messages.secure_sum import ConfirmStep, SharesStep, UnmaskShare, UnmaskStep
from schemas.secure_sum.agreement import new_secret_key
from schemas.secure_sum.encoding import Modulus
from schemas.secure_sum.errors import MessageRefused, SharesInconsistent, SumOutOfRange
from schemas.secure_sum.shamir import PRIME, SHARE_BYTES
from schemas.secure_sum.statements import sign_keys
from schemas.secure_sum.terms import terms_hash
from tests.secure_sum.scene import Session, identity, inputs_of, terms_of


def _until(step: int, members: int = 5, stops: dict[int, int] | None = None) -> Session:
    session = Session(terms_of(members), inputs_of(members), stops or {})
    steps = (
        session.step_keys,
        session.step_shares,
        session.step_masked,
        session.step_confirm,
        session.step_unmask,
    )
    for play in steps[:step]:
        play()
    return session


def test_keys_that_are_weak_foreign_or_used_are_rejected() -> None:
    session = _until(0)
    first = session.members[0].keys()
    intake.check_keys(session.terms, 0, first, [])
    digest, fresh = terms_hash(session.terms), new_secret_key().public
    lies = [
        sign_keys(digest, fresh, new_secret_key().public, bytes(16), identity(2)),
        sign_keys("other", fresh, new_secret_key().public, bytes(16), identity(1)),
        sign_keys(digest, fresh, fresh, bytes(16), identity(1)),
        sign_keys(digest, decode(first.c), new_secret_key().public, bytes(16), identity(1)),
        sign_keys(digest, fresh, bytes(32), bytes(16), identity(1)),
        sign_keys(digest, fresh, fresh[:-1], bytes(16), identity(1)),
    ]
    for lie in lies:
        with pytest.raises(MessageRefused) as refusal:
            intake.check_keys(session.terms, 1, lie, [first])
        assert refusal.value.position == 1


def test_lists_of_shares_have_the_right_number_and_lengths() -> None:
    session = _until(2)
    step = session.shares[0]
    intake.check_shares(session.keys, 0, step)
    lies = [
        SharesStep(commitment=step.commitment, shares=step.shares[:-1]),
        SharesStep(commitment=step.commitment, shares=[*step.shares, step.shares[0]]),
        SharesStep(commitment=step.commitment, shares=[*step.shares[:-1], encode(bytes(81))]),
        SharesStep(commitment=encode(bytes(31)), shares=step.shares),
    ]
    for lie in lies:
        with pytest.raises(MessageRefused):
            intake.check_shares(session.keys, 0, lie)


@pytest.mark.parametrize("change", [-1, 1, 3])
def test_a_masked_vector_has_exactly_its_bytes(change: int) -> None:
    session = _until(3)
    octets = session.masked[0]
    with pytest.raises(MessageRefused, match="a masked vector has"):
        intake.check_masked(session.terms, 0, len(octets) + change)


def test_confirmations_of_other_sets_or_by_others_are_rejected() -> None:
    session = _until(4, stops={4: 2})
    other = session.members[0].confirm(session.shared[0], range(5))
    for position, step in ((0, other), (1, session.confirmed[0]), (4, session.confirmed[0])):
        with pytest.raises(MessageRefused):
            intake.check_confirmation(session.terms, position, step, session.commitments(), session.masked)
    with pytest.raises(MessageRefused):
        intake.check_confirmation(
            session.terms, 0, ConfirmStep(signature="AAAA"), session.commitments(), session.masked
        )


def _share(position: int, of: str, octets: bytes) -> UnmaskShare:
    return UnmaskShare.model_validate({"position": position, "of": of, "share": encode(octets)})


def test_shares_of_the_wrong_secret_are_rejected() -> None:
    session = _until(5, stops={4: 2})
    honest = session.unmasked[0]
    intake.check_unmask(0, honest, session.shares, session.masked)
    assert [share.of for share in honest.shares] == ["b", "b", "b", "b", "s"]
    held = session.shared[0]
    lies = [
        honest.shares[:-1],
        [*honest.shares, _share(0, "s", held.mask_shares[0])],
        [*honest.shares[:-1], _share(4, "b", held.seed_shares[4])],
        [_share(0, "s", held.mask_shares[0]), *honest.shares[1:]],
        [_share(0, "b", bytes(32)), *honest.shares[1:]],
        [_share(0, "b", PRIME.to_bytes(SHARE_BYTES, "big")), *honest.shares[1:]],
        list(reversed(honest.shares)),
    ]
    for lie in lies:
        with pytest.raises(MessageRefused, match="share"):
            intake.check_unmask(0, UnmaskStep(shares=lie), session.shares, session.masked)
    with pytest.raises(MessageRefused):
        intake.check_unmask(4, honest, session.shares, session.masked)


def _with_bad_shares(session: Session, liars: list[int]) -> None:
    for liar in liars:
        shares = [
            share.model_copy(update={"share": encode(b"\x00" + bytes([liar + 1]) * 32)})
            for share in session.unmasked[liar].shares
        ]
        session.unmasked[liar] = UnmaskStep(shares=shares)


@pytest.mark.parametrize("liar", [0, 1, 2, 4, 5, 6, 7])
def test_a_bad_share_is_gone_around_and_its_holder_named(liar: int) -> None:
    session = _until(5, members=8, stops={3: 2})
    _with_bad_shares(session, [liar])
    opened = opened_keys(
        session.terms, session.keys, session.commitments(), frozenset(session.masked), session.unmasked
    )
    assert opened.blamed <= {liar}
    assert opened.blamed or liar == 7  # the first six shares of seven work without the last one
    assert np.array_equal(session.open(), session.expected())


def test_a_bad_share_among_exactly_t_opens_nothing_and_names_nobody() -> None:
    session = _until(5, stops={4: 2})
    _with_bad_shares(session, [1])
    with pytest.raises(SharesInconsistent):
        session.open()


def test_shares_that_their_owner_made_wrong_open_nothing() -> None:
    """A member distributes shares of another secret than it committed to: it cannot make others be blamed."""
    session = _until(1)
    for n in range(5):
        session.keyed[n] = session.members[n].accept_keys(intake.keys_answer(session.keys), session.keys[n])
        session.own[n] = session.members[n].shares(session.keyed[n])
        session.shares[n] = session.own[n].step
    other = Session(terms_of(5), inputs_of(5))
    forged = session.shares[2].model_copy(
        update={"commitment": other.members[2].shares(session.keyed[2]).step.commitment}
    )
    session.shares[2] = forged
    session.own[2] = type(session.own[2])(forged, session.own[2].mask_share, session.own[2].seed_share)
    session.step_masked()
    session.step_confirm()
    session.step_unmask()
    with pytest.raises(SharesInconsistent, match="member 2"):
        session.open()


def test_a_sum_that_members_cannot_have_sent_is_noticed() -> None:
    session = _until(2)
    modulus = Modulus(session.terms.modulus)
    words = [np.full(20, 2**22, modulus.word), *(np.zeros(20, modulus.word) for _ in range(4))]
    with pytest.raises(SumOutOfRange):
        list(plain_sum(session.terms, 5, [[modulus.pack(word) for word in words]]))
