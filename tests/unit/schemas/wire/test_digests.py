"""Digests in header fields: one canonical sha-256 member, or none."""

from __future__ import annotations

import pytest

from schemas.wire.digests import digest_of, from_field, to_field

DIGEST = digest_of(b"body")
FIELD = to_field(DIGEST)
ZEROS = f"sha-256=:{'A' * 43}=:"


SPACED = FIELD.replace("=:", " = :", 1)


@pytest.mark.parametrize(
    "value", [FIELD, f" {FIELD} ", SPACED, f"md5=:AAAA:, {FIELD}", f"{FIELD},sha-512=:AAAA:"]
)
def test_a_digest_survives_its_header_field(value: str) -> None:
    assert from_field(value) == DIGEST


@pytest.mark.parametrize(
    "value",
    [
        "",
        "md5=:AAAA:",
        "sha-256=:AAAA:",
        f"{FIELD}, {ZEROS}",
        f"{ZEROS}, {FIELD}",
        f"x-{FIELD}",
        f"{FIELD}x",
        f"{FIELD};sha-256=1",
        f"sha-256=:{'A' * 42}B=:",
    ],
)
def test_an_ambiguous_digest_is_ignored(value: str) -> None:
    """Two digests, a name that ends alike, and spare bits that are set."""
    assert from_field(value) is None
