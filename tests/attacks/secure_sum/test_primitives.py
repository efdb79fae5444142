"""Shamir's secret sharing, masks, key agreement and encoding: known answers, properties, errors."""

from __future__ import annotations

import hashlib
import hmac
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from schemas.identity.keys import decode
from schemas.secure_sum import encoding, shamir
from schemas.secure_sum.agreement import (
    AdvertisedKeys,
    SecretKey,
    agreed_key,
    new_secret_key,
    seal,
    self_mask_key,
    unseal,
)
from schemas.secure_sum.encoding import Modulus, largest_encoded, modulus_for, quantise, require_in_range
from schemas.secure_sum.errors import SecureSumError, SumOutOfRange
from schemas.secure_sum.masks import MaskKey, Masks, keystream
from schemas.secure_sum.statements import commitment_to
from schemas.secure_sum.terms import is_signed_by_server, terms_hash, threshold_for
from tests.scene.secure_sums import SERVER, identity, terms_of

U4 = np.dtype("<u4")


def test_the_modulus_of_shamir_is_prime() -> None:
    """Miller and Rabin's test with 40 bases; a composite passes with a probability of 4^-40."""
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        value = pow(base, odd, shamir.PRIME)
        powers = [value] + [value := value * value % shamir.PRIME for _ in range(twos - 1)]
        assert powers[0] == 1 or shamir.PRIME - 1 in powers


@pytest.mark.parametrize(("threshold", "members"), [(1, 1), (2, 3), (3, 5), (5, 5)])
def test_t_shares_reconstruct_the_secret(threshold: int, members: int) -> None:
    secret = bytes(range(32))
    shares = shamir.split(secret, threshold, members)
    for positions in combinations(range(members), threshold):
        weights = shamir.lagrange_weights(positions)
        assert shamir.combine({n: shares[n] for n in positions}, weights) == secret


def test_fewer_than_t_shares_fit_any_secret() -> None:
    """With t - 1 shares, every other secret has a polynomial through them: here one is constructed."""
    shares = shamir.split(b"\x01" * 32, 3, 5)
    wrong_secret = 12345
    points = {0: wrong_secret, 1: shamir.share_value(shares[0]), 2: shamir.share_value(shares[1])}
    at_three = sum(
        value * np.prod([pow(x - k, -1, shamir.PRIME) * (3 - k) for k in points if k != x], dtype=object)
        for x, value in points.items()
    )
    forged = int(at_three % shamir.PRIME).to_bytes(shamir.SHARE_BYTES, "big")
    weights = shamir.lagrange_weights([0, 1, 2])
    combined = shamir.combine({0: shares[0], 1: shares[1], 2: forged}, weights)
    assert combined == wrong_secret.to_bytes(32, "big")


def test_a_known_polynomial_has_known_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """f(x) = 5 + 7 x + 11 x^2: computed by hand."""
    drawn = iter([11, 7])
    monkeypatch.setattr("secrets.token_bytes", lambda size: next(drawn).to_bytes(size, "big"))
    shares = shamir.split((5).to_bytes(32, "big"), 3, 3)
    assert [shamir.share_value(share) for share in shares] == [23, 63, 125]


def test_bad_shares_are_refused() -> None:
    shares = shamir.split(bytes(32), 2, 3)
    weights = shamir.lagrange_weights([0, 1])
    for share in (shares[1][:-1], shares[1] + b"\0", shamir.PRIME.to_bytes(33, "big"), b""):
        with pytest.raises(SecureSumError):
            shamir.combine({0: shares[0], 1: share}, weights)
    with pytest.raises(SecureSumError):
        shamir.combine({0: shares[0], 2: shares[2]}, weights)
    for positions in ([1, 1], [-1, 2]):
        with pytest.raises(SecureSumError):
            shamir.lagrange_weights(positions)
    for secret, threshold in ((bytes(31), 2), (bytes(32), 0), (bytes(32), 4)):
        with pytest.raises(SecureSumError):
            shamir.split(secret, threshold, 3)


def test_the_keystream_is_aes_256_in_counter_mode() -> None:
    """AES-256 of the all-zero block under the all-zero key, from the AES known-answer tests (NIST CAVP)."""
    assert keystream(bytes(32), U4, 4).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_masks_depend_on_all_bits_of_the_key() -> None:
    masks = {keystream(bytes(32), U4, 8).tobytes()}
    for bit in range(256):
        masks.add(keystream((1 << bit).to_bytes(32, "big"), U4, 8).tobytes())
    assert len(masks) == 257


@pytest.mark.parametrize("word", ["<u2", "<u4"])
def test_masks_cancel_in_parts_of_any_size(word: str) -> None:
    size = 2 * 65_536 + 3
    total = np.arange(size).astype(word)
    added = Masks([MaskKey(b"k" * 32, is_subtracted=False)], np.dtype(word))
    removed = Masks([MaskKey(b"k" * 32, is_subtracted=True)], np.dtype(word))
    added.add_to(total)
    assert np.mean(total == np.arange(size).astype(word)) < 0.01
    for begin, end in ((0, 70_000), (70_000, 70_001), (70_001, size)):
        removed.add_to(total[begin:end])
    assert np.array_equal(total, np.arange(size).astype(word))


def test_masked_words_are_uniform() -> None:
    """Chi-square of the 256 values of each octet of a masked vector of zeros: 255 degrees of freedom."""
    words = np.zeros(200_000, U4)
    Masks([MaskKey(hashlib.sha256(b"chi").digest(), is_subtracted=False)], U4).add_to(words)
    octets = np.frombuffer(Modulus(24).pack(words), np.uint8)
    observed = np.bincount(octets, minlength=256)
    expected = len(octets) / 256
    assert 170 < float(((observed - expected) ** 2 / expected).sum()) < 360  # 1e-5 on both sides


T = f"sha256:{'ab' * 32}"


def _member(position: int, channel: SecretKey, mask: SecretKey) -> AdvertisedKeys:
    return AdvertisedKeys(position, channel.public, mask.public)


def test_an_agreed_key_depends_on_pair_and_session() -> None:
    """Every part of what both have advertised changes the key."""
    c, s, d, u, fresh = (new_secret_key() for _ in range(5))
    first, second = _member(3, c, s), _member(7, d, u)
    key = agreed_key(s, "mask", T, first, second)
    assert key == agreed_key(u, "mask", T, second, first)
    elsewhere = f"sha256:{'ac' * 32}"
    changed = {
        agreed_key(c, "channel", T, first, second),
        agreed_key(s, "mask", elsewhere, first, second),
        agreed_key(s, "mask", T, first, _member(7, d, fresh)),
        agreed_key(s, "mask", T, first, _member(7, fresh, u)),
        agreed_key(s, "mask", T, first, _member(8, d, u)),
        agreed_key(s, "mask", T, _member(2, c, s), second),
        agreed_key(s, "mask", T, _member(8, c, s), second),
        agreed_key(s, "mask", T, _member(3, fresh, s), second),
        self_mask_key(s.exchange(u.public), T),
    }
    assert len(changed | {key}) == 10


def test_an_agreed_key_is_hkdf_of_the_secret() -> None:
    """RFC 5869, spelt out: one block of HMAC(HMAC(salt, secret), info || 1)."""
    c, s, d, u = (SecretKey(bytes([n]) * 32) for n in range(1, 5))
    peer = X25519PublicKey.from_public_bytes(u.public)
    shared = X25519PrivateKey.from_private_bytes(s.raw).exchange(peer)
    extracted = hmac.new(b"tessera-secagg-v2", shared, hashlib.sha256).digest()
    pair = b"\x00\x03\x00\x07" + c.public + s.public + d.public + u.public
    info = b"mask\0\0\0\0" + b"\xab" * 32 + pair
    expanded = hmac.new(extracted, info + b"\x01", hashlib.sha256).hexdigest()
    assert agreed_key(u, "mask", T, _member(7, d, u), _member(3, c, s)).hex() == expanded
    assert expanded == "8fb37a4bc617f26d10ca788f4379c539a95de767b8c068c35aeb2ce60ccae82b"


def test_a_self_mask_depends_on_seed_and_session() -> None:
    extracted = hmac.new(b"tessera-secagg-v2", b"b" * 32, hashlib.sha256).digest()
    info = b"self\0\0\0\0" + b"\xab" * 32
    expanded = hmac.new(extracted, info + b"\x01", hashlib.sha256).hexdigest()
    assert self_mask_key(b"b" * 32, T).hex() == expanded


def test_a_ciphertext_is_for_one_pair_and_context() -> None:
    key = b"k" * 32
    sealed = seal(key, b"shares", 1, 2, b"T")
    assert unseal(key, sealed, 1, 2, b"T") == b"shares"
    for arguments in ((key, sealed, 2, 1, b"T"), (key, sealed, 1, 2, b"U"), (b"l" * 32, sealed, 1, 2, b"T")):
        with pytest.raises(SecureSumError):
            unseal(*arguments)
    with pytest.raises(SecureSumError):
        unseal(key, sealed[:-1] + bytes([sealed[-1] ^ 1]), 1, 2, b"T")


@given(
    st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=50), st.sampled_from([8, 16]), st.integers(0, 9)
)
def test_rounding_errors_are_below_one_step(values: list[float], bits: int, seed: int) -> None:
    array = np.array(values, np.float32)
    encoded = quantise(array, 2 << 20, bits, seed=bytes([seed]) * 32)
    assert np.abs(encoded).max() <= largest_encoded(bits)
    decoded = encoding.dequantise(encoded.astype(np.int64), 2 << 20, bits)
    assert (
        np.abs(decoded - np.clip(array.astype(np.float64), -2, 2)).max() < 2 / largest_encoded(bits) + 1e-12
    )


def test_rounding_is_unbiased() -> None:
    array = np.full(100_000, 0.3 / largest_encoded(16), np.float32)
    encoded = quantise(array, 1 << 20, 16)
    assert set(np.unique(encoded)) == {0, 1}
    assert abs(float(encoded.mean()) - 0.3) < 0.01  # seven standard errors


def test_nonfinite_values_are_refused() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(SecureSumError):
            quantise(np.array([value], np.float32), 1 << 20, 16)
    with pytest.raises(SecureSumError):
        quantise(np.zeros(1, np.float32), 0, 16)


@pytest.mark.parametrize(
    ("members", "bits", "modulus"), [(2, 16, 24), (256, 16, 24), (257, 16, 32), (258, 8, 16), (259, 8, 24)]
)
def test_the_modulus_holds_the_sum_of_all_members(members: int, bits: int, modulus: int) -> None:
    assert modulus_for(members, bits).bits == modulus


@given(st.lists(st.integers(-(2**23), 2**23 - 1), max_size=40))
def test_packed_words_are_unpacked_unchanged(values: list[int]) -> None:
    modulus = Modulus(24)
    words = np.array(values, np.int64).astype(modulus.word)
    packed = modulus.pack(words)
    assert len(packed) == modulus.packed_bytes(len(values)) == 3 * len(values)
    assert modulus.signed(modulus.unpack(packed)).tolist() == values


def test_a_partial_packed_word_is_refused() -> None:
    with pytest.raises(SecureSumError):
        Modulus(24).unpack(bytes(4))


def test_a_coordinate_out_of_range_is_refused() -> None:
    require_in_range(np.array([3 * 32_767, -3 * 32_767]), 3, 16)
    for value in (3 * 32_767 + 1, -3 * 32_767 - 1):
        with pytest.raises(SumOutOfRange):
            require_in_range(np.array([0, value]), 3, 16)


@pytest.mark.parametrize(("examples", "weight"), [(1, 1 / 64), (500, 0.5), (1000, 1.0), (9999, 1.0)])
def test_weights_are_clamped(examples: int, weight: float) -> None:
    assert encoding.clamp_weight(examples, 1000) == weight
    assert encoding.clamp_weight(examples, None) == 1.0


def test_clipped_values_are_counted() -> None:
    values = np.array([0.5, 1.5, -3.0, 0.9], np.float32)
    assert encoding.clipped_share(values, 1 << 20) == 0.5
    assert encoding.clipped_share(values, 1 << 20, weight=0.5) == 0.25
    assert encoding.clipped_share(np.zeros(0, np.float32), 1 << 20) == 0.0


def test_a_signature_covers_all_terms() -> None:
    terms = terms_of(3)
    assert is_signed_by_server(terms, SERVER.public_key())
    assert not is_signed_by_server(terms, identity(1).public_key())
    changed = terms.model_copy(update={"minimum": 2})
    assert not is_signed_by_server(changed, SERVER.public_key())
    assert terms_hash(changed) != terms_hash(terms)


@pytest.mark.parametrize(("members", "threshold"), [(3, 3), (5, 4), (8, 6), (10, 7), (30, 21), (100, 67)])
def test_the_threshold_is_above_two_thirds(members: int, threshold: int) -> None:
    assert threshold_for(members) == threshold


def test_a_commitment_is_the_digest_of_the_seed() -> None:
    assert decode(commitment_to(b"seed")) == hashlib.sha256(b"seed").digest()
