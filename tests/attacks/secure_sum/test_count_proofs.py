"""Proofs of counts: bits, few choices, and sums with one opening."""

from __future__ import annotations

import hashlib
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings

from schemas.identity.documents import sign
from schemas.identity.keys import decode, encode
from schemas.messages.secure_sum import SumTerms
from schemas.secure_sum import count_proofs
from schemas.secure_sum.count_proofs import (
    message_bytes,
    opened_counts,
    proved_counts,
    require_choice,
    require_opened,
    summed_commitments,
    verify_counts,
)
from schemas.secure_sum.counts import count_segments
from schemas.secure_sum.curve import (
    IDENTITY,
    ORDER,
    VALUE_BASE,
    VALUE_BASE_LABEL,
    add,
    base_times,
    commit,
    encode_scalar,
    times,
)
from schemas.secure_sum.errors import SecureSumError, SumOutOfRange
from tests.scene.forged_counts import forged_counts
from tests.scene.secure_sums import identity, terms_of

GROUPS = ("x1", "x2", "x3", "reject")
MEMBERS = 5
SIGNATURE = 64
SMALL_ORDER = tuple(
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
)


def terms(groups: tuple[str, ...] = GROUPS, **changes: object) -> SumTerms:
    segments = [segment.model_dump() for segment in count_segments(groups)]
    return terms_of(MEMBERS, **{"kind": "counts", "segments": segments, "choices": 2, **changes})


def blindings(groups: int = len(GROUPS), seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, ORDER) for _ in range(groups)]


def signed_again(of: SumTerms, position: int, body: bytes) -> bytes:
    """Return a changed message with a valid signature of the member."""
    return body + decode(
        sign(count_proofs._PURPOSE, count_proofs._signed(of, position, body), identity(position))
    )


@pytest.mark.parametrize("choices", [None, 1, 2, 3])
def test_allowed_counts_are_proved(choices: int | None) -> None:
    agreed = terms(choices=choices)
    for counts in product((0, 1), repeat=len(GROUPS)):
        if choices is not None and sum(counts[:3]) > choices:
            with pytest.raises(SecureSumError, match=f"into {choices} groups at most"):
                proved_counts(agreed, 1, counts, blindings(), identity(1))
            continue
        message = proved_counts(agreed, 1, counts, blindings(), identity(1))
        assert len(message) == message_bytes(agreed)
        verify_counts(agreed, 1, message)


@pytest.mark.parametrize("value", [2, 3, -1, ORDER - 2, 128])
@pytest.mark.parametrize("place", [0, 3])
def test_a_count_that_is_no_bit_is_refused(value: int, place: int) -> None:
    counts = [0, 1, 0, 0]
    counts[place] = value
    with pytest.raises(SecureSumError, match="each count is 0 or 1"):
        verify_counts(terms(), 1, forged_counts(terms(), 1, counts, blindings(), identity(1)))
    with pytest.raises(SecureSumError, match="is 0 or 1"):
        proved_counts(terms(), 1, counts, blindings(), identity(1))


def test_too_many_choices_are_refused() -> None:
    generous = terms(choices=None)
    message = proved_counts(generous, 1, [1, 1, 1, 0], blindings(), identity(1))
    verify_counts(generous, 1, message)
    with pytest.raises(SecureSumError, match="their sum allowed"):
        verify_counts(terms(), 1, forged_counts(terms(), 1, [1, 1, 1, 0], blindings(), identity(1)))


def test_reject_does_not_count_as_a_choice() -> None:
    verify_counts(terms(), 1, proved_counts(terms(), 1, [1, 1, 0, 1], blindings(), identity(1)))
    require_choice(terms(), [1, 1, 0, 1])


@pytest.mark.parametrize(
    "changed_terms",
    [
        terms(session=2),
        terms(round=4),
        terms(nonce="b3RoZXI"),
        terms(groups=("x2", "x1", "x3", "reject")),
        terms(choices=1),
        terms_of(6, kind="counts", segments=[s.model_dump() for s in count_segments(GROUPS)], choices=2),
    ],
    ids=["session", "round", "nonce", "order of groups", "choices", "members"],
)
def test_proof_of_other_terms_is_refused(changed_terms: SumTerms) -> None:
    """A valid signature does not help: the challenge has the terms."""
    message = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))
    if len(message) == message_bytes(changed_terms):
        with pytest.raises(SecureSumError, match="not signed"):
            verify_counts(changed_terms, 1, message)
        message = signed_again(changed_terms, 1, message[:-SIGNATURE])
    with pytest.raises(SecureSumError):
        verify_counts(changed_terms, 1, message)


def test_another_members_proof_is_refused() -> None:
    message = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))
    with pytest.raises(SecureSumError, match="not signed"):
        verify_counts(terms(), 2, message)
    copied = signed_again(terms(), 2, message[:-SIGNATURE])
    with pytest.raises(SecureSumError, match="each count is 0 or 1"):
        verify_counts(terms(), 2, copied)


def test_a_change_of_a_message_is_refused() -> None:
    body = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))[:-SIGNATURE]
    for begin in range(0, len(body), 32):
        changed = bytearray(body)
        changed[begin] ^= 1
        with pytest.raises(SecureSumError):
            verify_counts(terms(), 1, signed_again(terms(), 1, bytes(changed)))


@pytest.mark.parametrize("place", range(len(GROUPS)))
@pytest.mark.parametrize("point", SMALL_ORDER)
def test_points_of_small_order_are_refused(point: bytes, place: int) -> None:
    body = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))[:-SIGNATURE]
    commitment = body[32 * place : 32 * place + 32]
    for changed in (point, add(commitment, point)):
        if changed == commitment:  # plus the identity
            continue
        forged = body[: 32 * place] + changed + body[32 * place + 32 :]
        with pytest.raises(SecureSumError, match=r"group of commitments|is 0 or 1"):
            verify_counts(terms(), 1, signed_again(terms(), 1, forged))


def test_points_off_the_curve_are_refused() -> None:
    body = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))[:-SIGNATURE]
    for changed in (b"\xff" * 32, (2).to_bytes(32, "little"), (2**255 - 18).to_bytes(32, "little")):
        with pytest.raises(SecureSumError):
            verify_counts(terms(), 1, signed_again(terms(), 1, changed + body[32:]))


def test_noncanonical_scalars_are_refused() -> None:
    body = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))[:-SIGNATURE]
    refused = 0
    for begin in range(32 * len(GROUPS), len(body), 32):
        scalar = int.from_bytes(body[begin : begin + 32], "little") + ORDER
        spelled = body[:begin] + scalar.to_bytes(32, "little") + body[begin + 32 :]
        with pytest.raises(SecureSumError, match="below the order"):
            verify_counts(terms(), 1, signed_again(terms(), 1, spelled))
        refused += 1
    assert refused == 1 + 3 * len(GROUPS) + 5


@pytest.mark.parametrize("change", [b"", b"\0"], ids=["cut", "longer"])
def test_messages_of_another_length_are_refused(change: bytes) -> None:
    message = proved_counts(terms(), 1, [1, 0, 0, 0], blindings(), identity(1))
    with pytest.raises(SecureSumError, match="counts have"):
        verify_counts(terms(), 1, message[:-1] if not change else message + change)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=MEMBERS),
    st.integers(0, 2**32),
)
def test_sums_open_to_the_counts(uses: list[list[bool]], seed: int) -> None:
    agreed = terms(groups=("x1", "x2", "reject"))
    counts = [[int(use) for use in member] for member in uses]
    drawn = [blindings(3, seed + n) for n in range(len(uses))]
    messages = [proved_counts(agreed, n, counts[n], drawn[n], identity(n)) for n in range(len(uses))]
    for n, message in enumerate(messages):
        verify_counts(agreed, n, message)
    sums = summed_commitments(agreed, messages)
    opened = [sum(column) % ORDER for column in zip(*drawn, strict=True)]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    assert opened_counts(sums, opened, len(uses)) == totals
    names = ("x1", "x2", "reject")
    texts = dict(zip(names, map(encode, sums), strict=True))
    openings = {name: encode(encode_scalar(scalar)) for name, scalar in zip(names, opened, strict=True)}
    groups = dict(zip(names, totals, strict=True))
    require_opened(texts, groups, openings)
    for name in names:
        for wrong_total in (totals[names.index(name)] + 1, totals[names.index(name)] + 2):
            with pytest.raises(SecureSumError, match=f"count of {name} is not the sum"):
                require_opened(texts, groups | {name: wrong_total}, openings)
        with pytest.raises(SecureSumError, match=f"count of {name} is not the sum"):
            require_opened(texts, groups, openings | {name: encode(encode_scalar(7))})


def test_noncanonical_openings_are_refused() -> None:
    texts = {"x1": encode(commit(3, 9))}
    require_opened(texts, {"x1": 3}, {"x1": encode(encode_scalar(9))})
    with pytest.raises(SecureSumError, match="below the order"):
        require_opened(texts, {"x1": 3}, {"x1": encode((9 + ORDER).to_bytes(32, "little"))})
    with pytest.raises(SecureSumError, match="other groups"):
        require_opened(texts, {"x1": 3}, {})


def test_a_wrong_blinding_is_a_spoilt_sum() -> None:
    with pytest.raises(SumOutOfRange, match="a member spoilt"):
        opened_counts([commit(1, 10)], [11], 5)
    with pytest.raises(SumOutOfRange):
        opened_counts([commit(6, 10)], [10], 5)


def test_commitment_hides_its_value() -> None:
    """A commitment to 0 is one to 1 under another blinding; only the logarithm of H would tell which."""
    blinding, logarithm = 5, 11  # of a base whose logarithm is known
    base = base_times(logarithm)
    assert add(base_times(blinding + logarithm), times(0, base)) == add(base_times(blinding), times(1, base))


def test_value_base_is_hashed_to_the_group() -> None:
    digest = hashlib.sha512(VALUE_BASE_LABEL).digest()
    assert bindings.crypto_core_ed25519_from_uniform(digest[:32]) == VALUE_BASE
    assert bindings.crypto_core_ed25519_is_valid_point(VALUE_BASE)
    assert times(ORDER - 1, VALUE_BASE) == add(times(ORDER - 2, VALUE_BASE), VALUE_BASE)
    assert add(times(ORDER - 1, VALUE_BASE), VALUE_BASE) == IDENTITY
