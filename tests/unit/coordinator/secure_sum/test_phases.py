"""Phases of a session: their order, and when one closes, aborts or waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordinator.secure_sum.phases import PHASES, Phase, PhaseFacts, decide, first_phase, following, patience
from schemas.messages.secure_sum import SumTerms
from tests.scene.secure_sums import terms_of

OPENED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("masking", "phases"), [("pairwise", PHASES), ("none", ("masked",))])
def test_sessions_go_through_the_phases_of_their_masking(masking: str, phases: tuple[Phase, ...]) -> None:
    terms, phase, passed = terms_of(5, masking=masking), None, []
    while (phase := first_phase(terms) if phase is None else following(terms, phase)) is not None:
        passed.append(phase)
    assert tuple(passed) == phases


def decided(terms: SumTerms, seconds: float, **facts: Any) -> str:
    at_phase = PhaseFacts(**{"phase": "shares", "expected": 5, "opened_at": OPENED} | facts)
    return decide(terms, at_phase, OPENED + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("expected", "answered", "early", "late"),
    [
        (5, 5, "close", "close"),
        (5, 4, "wait", "close"),  # four of five are enough
        (5, 3, "wait", "abort"),
        (3, 3, "abort", "abort"),  # two have dropped out: nobody is left to wait for
    ],
)
def test_answers_and_time_decide_about_a_phase(expected: int, answered: int, early: str, late: str) -> None:
    terms = terms_of(5)
    facts = {"expected": expected, "answered": answered}
    assert decided(terms, 0, **facts) == early
    assert decided(terms, patience(terms, "shares") - 0.01, **facts) == early
    assert decided(terms, patience(terms, "shares"), **facts) == late


def test_long_vectors_and_unmasking_get_more_time() -> None:
    terms = terms_of(5)
    longer = terms_of(5, segments=[{"name": "lora", "values": 10**6, "clip": 1 << 20}])
    assert patience(longer, "keys") == patience(terms, "keys") == terms.phase_seconds
    assert patience(longer, "masked") == terms.phase_seconds + 3  # 24 bits a value, 1 MB/s
    assert patience(terms, "unmask") == 5 * terms.phase_seconds
