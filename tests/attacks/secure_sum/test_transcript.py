"""Information in the transcript of a session: sums, and no single input."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import numpy as np
import pytest

from coordinator.secure_sum.phases import PhaseFacts, decide, required
from schemas.identity.keys import decode
from schemas.secure_sum.agreement import self_mask_key
from schemas.secure_sum.encoding import Modulus
from schemas.secure_sum.errors import SessionAborted
from schemas.secure_sum.masks import MaskKey, Masks
from schemas.secure_sum.shamir import combine, lagrange_weights
from schemas.secure_sum.statements import commitment_to
from tests.scene.secure_sums import Session, inputs_of, shares_in, terms_of

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("stops", [{}, {4: 2}, {4: 3}, {4: 4}, {0: 1}, {2: 2}])
def test_a_session_never_opens_both_secrets(stops: dict[int, int]) -> None:
    session = Session(terms_of(5), inputs_of(5), stops)
    assert np.array_equal(session.run(), session.expected())
    opened = shares_in(session.unmasked)
    for owner in range(5):
        assert not ((owner, "b") in opened and (owner, "s") in opened)
        assert ((owner, "b") in opened) == (owner in session.masked)


def test_a_transcript_before_unmasking_contains_no_secret() -> None:
    session = Session(terms_of(5), inputs_of(5), {n: 4 for n in range(5)})
    with pytest.raises(SessionAborted):
        session.run()
    assert not shares_in(session.unmasked)
    transcript = b"".join(decode(sealed) for step in session.shares.values() for sealed in step.shares)
    for member in session.members.values():
        for secret in (member.secrets.seed, member.secrets.mask.raw, member.secrets.channel.raw):
            assert secret not in transcript


def test_masked_vectors_without_self_mask_hide_the_input() -> None:
    """With every seed `b` rebuilt, as the server has after step 4, an input stays behind its pair masks."""
    session = Session(terms_of(5), inputs_of(5))
    session.run()
    weights = lagrange_weights(range(4))
    modulus = Modulus(session.terms.modulus)
    for owner in range(5):
        shares = shares_in(session.unmasked)[owner, "b"]
        seed = combine({holder: shares[holder] for holder in range(4)}, weights)
        assert commitment_to(seed) == session.shares[owner].commitment
        words = modulus.unpack(session.masked[owner])
        key = self_mask_key(seed, session.members[owner].accepted.digest)
        Masks([MaskKey(key, is_subtracted=True)], modulus.word).add_to(words)
        in_range = np.abs(modulus.signed(words)) <= 32_767
        assert in_range.mean() < 0.3  # 1 in 256 words of a uniform vector is; 6 of 20 are once in 10^10
        assert not np.array_equal(modulus.signed(words), session.inputs[owner])


@pytest.mark.parametrize(
    ("phase", "answered", "seconds", "decision"),
    [
        ("keys", 5, 0, "close"),
        ("keys", 4, 0, "wait"),
        ("keys", 4, 120, "close"),
        ("keys", 3, 119, "wait"),
        ("keys", 3, 120, "abort"),
        ("masked", 3, 500, "abort"),
        ("confirm", 4, 120, "close"),
        ("unmask", 4, 120, "wait"),
        ("unmask", 4, 600, "close"),
        ("unmask", 3, 600, "abort"),
    ],
)
def test_a_phase_closes_when_complete_or_overdue(
    phase: str, answered: int, seconds: int, decision: str
) -> None:
    facts = PhaseFacts(phase, 5, answered, BEGAN)  # type: ignore[arg-type]
    assert decide(terms_of(5), facts, BEGAN + timedelta(seconds=seconds)) == decision


@pytest.mark.parametrize("phase", ["keys", "shares", "masked", "confirm", "unmask"])
def test_a_phase_below_its_minimum_aborts_immediately(phase: str) -> None:
    for expected, answered in product(range(6), range(6)):
        if answered == expected:
            facts = PhaseFacts(phase, expected, answered, BEGAN)  # type: ignore[arg-type]
            is_enough = answered >= required(terms_of(5), phase)  # type: ignore[arg-type]
            assert decide(terms_of(5), facts, BEGAN) == ("close" if is_enough else "abort")
