from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.rounds.lifecycle import (
    ACCEPTING,
    ENDED,
    TRANSITIONS,
    Participation,
    RoundFacts,
    Step,
    after_round,
    client_action,
    is_waited_for,
    next_state,
    retry_after,
    shown_state,
)
from schemas.messages.rounds import RoundState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STATES: list[RoundState] = [
    "open",
    "collecting",
    "summing",
    "closing",
    "aggregating",
    "published",
    "abandoned",
]


def facts(state: RoundState, **changes: object) -> RoundFacts:
    defaults = {
        "joined": 3,
        "expected": 3,
        "waiting": 1,
        "delivered": 2,
        "needed": 3,
        "quorum": 2,
        "collect_seconds": 60.0,
        "deadline": NOW + timedelta(seconds=60),
        "lease_expires_at": NOW + timedelta(seconds=60),
    }
    return RoundFacts(state=state, **(defaults | changes))  # type: ignore[arg-type]


any_facts = st.builds(
    RoundFacts,
    state=st.sampled_from(STATES),
    expected=st.integers(0, 5),
    waiting=st.integers(0, 5),
    delivered=st.integers(0, 5),
    needed=st.integers(1, 5),
    quorum=st.integers(1, 5),
    collect_seconds=st.floats(1, 1e6),
    deadline=st.none() | st.datetimes(timezones=st.just(UTC)),
    lease_expires_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    sums=st.booleans(),
)


@given(facts=any_facts, now=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_next_state_returns_only_legal_transitions(facts: RoundFacts, now: datetime) -> None:
    step = next_state(facts, now)
    if facts.state in ENDED:
        assert step is None
    if step is not None:
        assert (facts.state, step.to) in TRANSITIONS
        assert (step.reason is not None) == (step.to == "abandoned")
        assert (step.deadline is not None) == (step.to == "collecting")


@given(facts=any_facts, now=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_a_due_step_stays_due(facts: RoundFacts, now: datetime) -> None:
    step = next_state(facts, now)
    later = next_state(facts, now + timedelta(days=1))
    if step is not None:
        assert later is not None
        assert later.to == step.to


def test_an_ended_round_has_no_transitions() -> None:
    assert not {before for before, _ in TRANSITIONS} & ENDED
    assert ACCEPTING.isdisjoint(ENDED)


def test_a_round_stays_open_until_enough_clients_join() -> None:
    assert next_state(facts("open", joined=2, expected=2), NOW) is None
    begun = next_state(facts("open"), NOW)
    assert begun == Step("collecting", deadline=NOW + timedelta(seconds=60))


def test_joins_of_optional_members_begin_no_round() -> None:
    assert next_state(facts("open", joined=3, expected=1, waiting=1), NOW) is None
    assert next_state(facts("open", joined=3, expected=2, waiting=2), NOW) is not None


@pytest.mark.parametrize(
    ("before", "waited_for"),
    [
        ((), True),
        (("joined",), True),
        (("joined", "joined"), False),
        (("joined", "arrived"), True),
        (("late", "joined"), True),
        (("rejected", "joined"), True),
        (("joined", "joined", "arrived"), False),
    ],
)
def test_two_rounds_without_updates_make_a_client_optional(before: tuple[str, ...], waited_for: bool) -> None:
    assert is_waited_for(before) is waited_for


def test_a_round_closes_early_after_all_expected_updates() -> None:
    assert next_state(facts("collecting", waiting=0, delivered=3), NOW) == Step("closing")
    # everybody who is left has delivered, but they are fewer than the round needs: others may still join
    assert next_state(facts("collecting", waiting=0, delivered=2), NOW) is None


def test_a_secure_sum_round_is_summed_before_closing() -> None:
    deadline = NOW + timedelta(seconds=60)
    assert next_state(facts("collecting", waiting=0, delivered=3, sums=True), NOW) == Step("summing")
    assert next_state(facts("collecting", sums=True), deadline) == Step("summing")
    abandoned = next_state(facts("collecting", delivered=1, sums=True), deadline)
    assert abandoned == Step("abandoned", reason="too-few-updates")
    assert next_state(facts("summing", sums=True), NOW + timedelta(days=1)) is None
    assert client_action("running", "summing", delivered=False) == "wait"


def test_a_quorum_decides_at_the_deadline() -> None:
    deadline = NOW + timedelta(seconds=60)
    assert next_state(facts("collecting"), deadline - timedelta(microseconds=1)) is None
    assert next_state(facts("collecting"), deadline) == Step("closing")
    abandoned = next_state(facts("collecting", delivered=1), deadline)
    assert abandoned == Step("abandoned", reason="too-few-updates")


def test_an_aggregation_is_claimed_again_after_its_lease() -> None:
    until = NOW + timedelta(seconds=60)
    assert next_state(facts("closing"), NOW) == Step("aggregating")
    assert next_state(facts("aggregating"), NOW) is None
    assert next_state(facts("aggregating"), until) == Step("aggregating")


def test_after_round_opens_finishes_or_waits() -> None:
    assert after_round("running", published=2, total=3) == "open-next"
    assert after_round("running", published=3, total=3) == "finish"
    assert after_round("paused", published=2, total=3) == "wait"
    assert after_round("paused", published=3, total=3) == "finish"
    assert after_round("finished", published=3, total=3) == "wait"
    assert after_round("finished", published=2, total=3) == "wait"


def test_client_action_follows_federation_and_round_state() -> None:
    assert client_action("running", "open", delivered=False) == "take-part"
    assert client_action("paused", "collecting", delivered=False) == "take-part"
    assert client_action("running", "collecting", delivered=True) == "wait"
    assert client_action("running", "closing", delivered=False) == "wait"
    assert client_action("open", None, delivered=False) == "wait"
    assert client_action("finished", "published", delivered=True) == "finished"


@given(mean=st.floats(0.01, 3600), draw=st.floats(0, 1, exclude_max=True))
def test_waiting_is_spread_around_the_mean(mean: float, draw: float) -> None:
    seconds = retry_after(mean, draw)
    assert seconds >= 1
    assert seconds == 1 or 0.5 * mean - 1 <= seconds <= 1.5 * mean + 1


def test_a_revocation_leaves_states_of_ended_rounds() -> None:
    hour = timedelta(hours=1)
    assert shown_state(Participation("arrived", None, None)) == "arrived"
    assert shown_state(Participation("arrived", NOW, None)) == "revoked"
    assert shown_state(Participation("arrived", NOW, NOW + hour)) == "revoked"
    assert shown_state(Participation("arrived", NOW, NOW - hour)) == "arrived"
