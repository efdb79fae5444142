"""Accepted keys, signed documents, and enrolment tokens."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from schemas.identity.documents import hash_of, is_signed, sign
from schemas.identity.enrolment_token import EnrolmentTokenText, TokenMalformed, read
from schemas.identity.keys import KeyUnusable, decode, encode, name_of, public_key, thumbprint

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TOKEN = EnrolmentTokenText("0" * 24, "s" * 43, "p" * 43)

Point = tuple[int, int]


def _add(a: Point, b: Point) -> Point:
    """Add on the twisted Edwards curve -x² + y² = 1 + d x² y² (RFC 8032, section 5.1)."""
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def _encoded(point: Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decoded(raw: bytes) -> Point | None:
    y = int.from_bytes(raw, "little") % 2**255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    return (P - x if x & 1 != raw[31] >> 7 else x), y


def _small_order_points() -> set[Point]:
    """Multiply points by the order of the large subgroup: what is left has an order of 1, 2, 4 or 8."""
    order = 2**252 + 27742317777372353535851937790883648493
    points: set[Point] = set()
    for y in range(2, 60):
        point = _decoded(y.to_bytes(32, "little"))
        result: Point = (0, 1)
        while point is not None and order:
            result = _add(result, point) if order & 1 else result
            point, order = _add(point, point), order >> 1
        order = 2**252 + 27742317777372353535851937790883648493
        points.add(result)
    return points


def test_keys_of_small_order_are_refused() -> None:
    points = _small_order_points()
    assert len(points) == 8
    for point in points:
        Ed25519PublicKey.from_public_bytes(_encoded(point))
        with pytest.raises(KeyUnusable):
            public_key(encode(_encoded(point)))


def test_keys_in_noncanonical_encoding_are_refused() -> None:
    for sign_bit in (0, 2**255):
        for y in range(P, 2**255):
            with pytest.raises(KeyUnusable):
                public_key(encode((y | sign_bit).to_bytes(32, "little")))
    for y in (1, P - 1):  # x is 0, which has no sign
        with pytest.raises(KeyUnusable):
            public_key(encode((y | 2**255).to_bytes(32, "little")))


def test_a_key_is_read_from_its_canonical_name() -> None:
    name = name_of(KEY)
    assert name_of(public_key(name)) == name
    for spelling in (name + "=", name[:-1] + "B", name + "\n", name[:-1], "", "é" * 43):
        with pytest.raises(KeyUnusable):
            public_key(spelling)


@given(st.binary(min_size=1, max_size=80))
def test_encoded_bytes_are_decoded_unchanged(raw: bytes) -> None:
    assert decode(encode(raw)) == raw


def test_a_signature_covers_purpose_and_members() -> None:
    document = {"b": 1, "a": "é", "n": None}
    signature = sign("tessera-hello-v1", document, KEY)
    key = KEY.public_key()
    assert is_signed("tessera-hello-v1", {"n": None, "a": "é", "b": 1, "signature": "x"}, signature, key)
    for changed in ({**document, "b": 2}, {**document, "c": 1}, {"b": 1}):
        assert not is_signed("tessera-hello-v1", changed, signature, key)
    assert not is_signed("tessera-enrolment-v1", document, signature, key)
    for wrong in (
        None,
        3,
        "",
        "=",
        signature[:-2],
        sign("tessera-hello-v1", document, Ed25519PrivateKey.generate()),
    ):
        assert not is_signed("tessera-hello-v1", document, wrong, key)


def test_a_documents_hash_uses_rfc_8785() -> None:
    canonical = '{"a":"é\\n","b":1,"c":[true,null]}'.encode()
    assert (
        hash_of({"c": [True, None], "b": 1, "a": "é\n"}) == f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    )


def test_an_enrolment_token_has_a_checksum() -> None:
    text = str(TOKEN)
    assert read(text) == TOKEN
    assert text.startswith("tsr1_")
    for damaged in (text[:-1], text[1:], text.replace("s", "t", 1), text + " ", text.upper(), ""):
        with pytest.raises(TokenMalformed):
            read(damaged)
    assert str(replace(TOKEN, server=thumbprint(name_of(KEY)))) != text
