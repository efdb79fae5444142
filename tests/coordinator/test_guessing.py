"""Whoever guesses tokens has to wait, and nobody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.enrolment.guessing import FailedEnrolments
from coordinator.errors import RateLimited
from tests.served import Served, enrolment, slug


def test_five_failures_a_minute_are_enough(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), failed_enrolments_per_minute=5, trusted_proxies="127.0.0.1")
    token, anyone = served.enrolment_token(served.federation(), "a"), served.http()
    good = enrolment(anyone, token, "a", Ed25519PrivateKey.generate())
    for _ in range(5):
        assert anyone.post("/v1/enrolments", json=good | {"token": "tsr1_guess"}).status_code == 401
    limited = anyone.post("/v1/enrolments", json=good)
    assert (limited.status_code, slug(limited)) == (429, "rate-limited")
    assert 1 <= int(limited.headers["retry-after"]) <= 65
    elsewhere = anyone.post("/v1/enrolments", json=good, headers={"X-Forwarded-For": "192.0.2.1"})
    assert elsewhere.status_code == 201


def test_a_minute_later_it_may_be_tried_again() -> None:
    now = [0.0]
    failed = FailedEnrolments(2, clock=lambda: now[0])
    for moment in (0.0, 30.0):
        now[0] = moment
        failed.check("192.0.2.1")
        failed.note("192.0.2.1")
    with pytest.raises(RateLimited):
        failed.check("192.0.2.1")
    failed.check("192.0.2.2")
    now[0] = 60.1
    failed.check("192.0.2.1")


def test_addresses_of_one_ipv6_network_are_one_and_memory_stays_small() -> None:
    failed = FailedEnrolments(1)
    failed.note("2001:db8::1")
    with pytest.raises(RateLimited):
        failed.check("2001:db8::2")
    failed.check("2001:db8:0:1::2")
    for number in range(10_001):
        failed.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    failed.check("2001:db8::1")
