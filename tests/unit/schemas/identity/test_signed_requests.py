"""Signed requests after RFC 9421, against the RFC's example and another implementation."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, algorithms
from http_message_signatures.resolvers import MappingKeyResolver
from hypothesis import given
from hypothesis import strategies as st

from schemas.identity.keys import is_signed_by, name_of
from schemas.identity.signed_requests import ProfileBroken, Target, read, sign, signature_base
from schemas.wire.digests import digest_of, to_field

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NONCE = "n" * 24
COVERED = ("@method", "@authority", "@path", "@query", "content-digest")
BODY = b'{"x": 1}'

# RFC 9421, appendix B.1.4 and B.2.6
RFC_KEY = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----
"""
RFC_SIGNATURE = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="


def _request(
    method: str = "POST", url: str = "https://Tessera.example:443/v1/a%20b?x=1&y=%2F"
) -> httpx.Request:
    headers = {"Content-Digest": to_field(digest_of(BODY))}
    return httpx.Request(method, url, content=BODY, headers=headers)


def _target(request: httpx.Request) -> Target:
    path, _, query = request.url.raw_path.decode().partition("?")
    digest = request.headers.get("content-digest")
    return Target(request.method, request.headers["host"], path, query, digest)


def _signed(created: int | None = None) -> dict[str, str]:
    return sign(_target(_request()), KEY, created=created or int(time.time()), nonce=NONCE)


def test_the_signature_base_matches_rfc_9421() -> None:
    values = {
        "date": "Tue, 20 Apr 2021 02:07:55 GMT",
        "@method": "POST",
        "@path": "/foo",
        "@authority": "example.com",
        "content-type": "application/json",
        "content-length": "18",
    }
    names = " ".join(f'"{name}"' for name in values)
    base = signature_base(values, f'({names});created=1618884473;keyid="test-key-ed25519"')
    key = load_pem_private_key(RFC_KEY, None)
    assert isinstance(key, Ed25519PrivateKey)
    assert base64.b64encode(key.sign(base)).decode() == RFC_SIGNATURE
    assert is_signed_by(key.public_key(), base64.b64decode(RFC_SIGNATURE), base)


@pytest.mark.parametrize(
    "url",
    [
        "https://Tessera.example:443/v1/a%20b?x=1&y=%2F",
        "http://localhost:8000/",
        "https://[::1]:9/x?",
        "http://a/b?c",
    ],
)
def test_our_signature_verifies_with_another_implementation(url: str) -> None:
    request = _request(url=url)
    request.headers.update(sign(_target(request), KEY, created=int(time.time()), nonce=NONCE))
    keys = MappingKeyResolver(public_keys={name_of(KEY): KEY.public_key()}, private_keys={})
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    (result,) = verifier.verify(request, expect_tag="tessera-v1", require_components=COVERED, body=BODY)
    assert result.parameters["nonce"] == NONCE


def test_another_implementations_signature_is_accepted() -> None:
    request = _request()
    keys = MappingKeyResolver(public_keys={}, private_keys={name_of(KEY): KEY})
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    created = int(time.time())
    signer.sign(
        request,
        key_id=name_of(KEY),
        created=datetime.fromtimestamp(created, UTC),
        expires=datetime.fromtimestamp(created + 20, UTC),
        nonce=NONCE,
        label="sig1",
        tag="tessera-v1",
        use_existing_digest=True,
        covered_component_ids=("content-digest", "@query", "@path", "@authority", "@method"),
    )
    signed = read(request.headers["signature-input"], request.headers["signature"])
    assert (signed.created, signed.expires, signed.keyid) == (created, created + 20, name_of(KEY))
    assert signed.is_by(KEY.public_key(), _target(request))


@pytest.mark.parametrize(
    "changed",
    [
        _request(method="PUT"),
        _request(url="https://other.example/v1/a%20b?x=1&y=%2F"),
        _request(url="https://tessera.example/v1/a%20c?x=1&y=%2F"),
        _request(url="https://tessera.example/v1/a%20b?x=2&y=%2F"),
        _request(url="https://tessera.example/v1/a%20b"),
        httpx.Request("POST", _request().url, headers={"Content-Digest": to_field(digest_of(b"other"))}),
    ],
    ids=["method", "authority", "path", "query", "no query", "body"],
)
def test_a_signature_is_valid_for_one_request(changed: httpx.Request) -> None:
    fields = _signed()
    signed = read(fields["Signature-Input"], fields["Signature"])
    assert signed.is_by(KEY.public_key(), _target(_request()))
    assert not signed.is_by(KEY.public_key(), _target(changed))
    assert not signed.is_by(Ed25519PrivateKey.generate().public_key(), _target(_request()))


def test_a_signature_is_timely_with_two_minutes_tolerance() -> None:
    fields = _signed(created=1000)
    signed = read(fields["Signature-Input"], fields["Signature"])
    assert [signed.is_timely(now) for now in (879, 880, 1000, 1150, 1151)] == [False, True, True, True, False]


def test_prefer_and_range_are_signed_if_present() -> None:
    target = Target("GET", "a", "/b", "", None, prefer="wait=3", range="bytes=5-")
    fields = sign(target, KEY, created=1000, nonce=NONCE)
    signed = read(fields["Signature-Input"], fields["Signature"])
    assert signed.covers("prefer")
    assert signed.covers("range")
    assert signed.is_by(KEY.public_key(), target)
    for changed in (replace(target, prefer="wait=4"), replace(target, range="bytes=6-")):
        assert not signed.is_by(KEY.public_key(), changed)


INPUT = _signed(created=1000)["Signature-Input"]


@pytest.mark.parametrize(
    "change",
    [
        ("sig1=", "sig2="),
        ('"@path" ', ""),
        ('"@path"', '"@path" "@path"'),
        ('"@path"', '"@path" "date"'),
        ('"@path"', '"@path";req'),
        ("created=1000;", ""),
        ("created=1000;", "created=1000;created=1000;"),
        ("created=1000;", "created=1000;more=1;"),
        ("created=1000", 'created="1000"'),
        ("created=1000", "created=-1"),
        ("expires=1030", "expires=1031"),
        ("expires=1030", "expires=1000"),
        ('"ed25519"', '"hmac-sha256"'),
        ('"tessera-v1"', '"tessera-v2"'),
        (NONCE, "short"),
        (NONCE, "ä" * 24),
        ("sig1=", "sig1=();created=1, sig1="),
        ("sig1=", " " * 1024 + "sig1="),
    ],
)
def test_a_signature_outside_the_profile_is_refused(change: tuple[str, str]) -> None:
    altered = INPUT.replace(*change, 1)
    assert altered != INPUT
    with pytest.raises(ProfileBroken):
        read(altered, _signed()["Signature"])


def test_a_second_signature_is_refused() -> None:
    fields = _signed()
    twice = ", ".join([fields["Signature"], fields["Signature"].replace("sig1", "sig2")])
    with pytest.raises(ProfileBroken):
        read(fields["Signature-Input"], twice)


@pytest.mark.slow
@given(st.text(max_size=400), st.text(max_size=150))
def test_hostile_signature_fields_raise_profile_broken(signature_input: str, signature: str) -> None:
    with pytest.raises(ProfileBroken):
        read(signature_input, signature)


@given(st.integers(0, len(INPUT) - 1), st.characters())
def test_a_changed_character_never_verifies(place: int, character: str) -> None:
    altered = INPUT[:place] + character + INPUT[place + 1 :]
    fields = _signed(created=1000)
    try:
        signed = read(altered, fields["Signature"])
    except ProfileBroken:
        return
    assert altered == INPUT or not signed.is_by(KEY.public_key(), _target(_request()))
