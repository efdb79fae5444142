"""Births, prunings and merges of experts: each needs many members and several rounds, and has a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coordinator.experts.bank import Bank, Event, Outcome, RoundCounts, RoundSums, new_bank
from coordinator.experts.equivalence import Cost, Pair
from coordinator.experts.registry import after_round, is_birth_due
from coordinator.strategies.bank_rules import Rules

RULES = Rules()
MEMBERS = 15


def like(*pairs: tuple[int, int], cost: float = 0.0) -> dict[Pair, Cost]:
    """Return costs of five members of each expert, the same in both directions."""
    both = [pair for first, second in pairs for pair in ((first, second), (second, first))]
    return dict.fromkeys(both, Cost(5, 5 * cost, 5 * cost**2))


def counts(users: Mapping[int, int], rejects: int = 0, members: int = MEMBERS) -> RoundCounts:
    return RoundCounts(members, users, rejects)


def play_round(
    bank: Bank,
    number: int,
    users: Mapping[int, int],
    rejects: int = 0,
    *,
    rules: Rules = RULES,
    members: int = MEMBERS,
    costs: Mapping[Pair, Cost] | None = None,
) -> Outcome:
    """Apply a round to the registry; the change of rejecters is summed when a birth is due."""
    counted = counts(users, rejects, members)
    summed = {expert: float(count) for expert, count in users.items() if count >= rules.k_min}
    sums = RoundSums(counted, summed, is_birth_due(bank, rules, counted, 0, number), costs or {})
    return after_round(bank, rules, sums, number)


def even(bank: Bank) -> dict[int, int]:
    return {expert.expert: MEMBERS // len(bank.active) for expert in bank.active}


def play_rounds(
    bank: Bank, rounds: range, users: Mapping[int, int] | None, rejects: int = 0
) -> tuple[Bank, list[Event]]:
    events: list[Event] = []
    for number in rounds:
        outcome = play_round(bank, number, even(bank) if users is None else users, rejects)
        bank, events = outcome.bank, [*events, *outcome.events]
    return bank, events


def test_a_birth_needs_enough_rejects_in_consecutive_rounds() -> None:
    bank = new_bank(2, RULES, 0)
    first = play_round(bank, 5, even(bank), rejects=4)
    assert not first.events
    pause = play_round(first.bank, 6, even(bank), rejects=0)
    assert not play_round(pause.bank, 7, even(bank), rejects=4).events
    born = play_round(first.bank, 6, even(bank), rejects=4)
    [event] = born.events
    assert (event.change, event.expert, event.peer, event.round) == ("born", 3, 0, 6)
    assert event.reason == (
        "4 of 15 members fit no expert, at least 3 in 2 rounds in a row; 2 of 12 specialists were active"
    )
    assert event.numbers == {"rejects": 4, "members": 15, "needed": 3, "rounds": 2, "active": 2}
    assert born.bank[3].parent == 0
    assert [expert.prior for expert in born.bank.active] == pytest.approx([1 / 3] * 3)
    assert born.bank.rejected == 0


@pytest.mark.parametrize(("members", "rejects"), [(10, 1), (10, 2), (60, 5)])
def test_few_members_cause_no_birth(members: int, rejects: int) -> None:
    """Defects 4 and 14, row 7: a share of .1 was one client of ten, and two learn each other's change."""
    bank = new_bank(2, RULES, 0)
    for number in range(1, 20):
        outcome = play_round(bank, number, {1: 5, 2: 5}, rejects, members=members)
        assert not outcome.events
        bank = outcome.bank


def test_equally_fitting_experts_cause_no_birth() -> None:
    """Defect 4: with undifferentiated clients the bank grew from 4 to 11 experts in 14 rounds."""
    bank, events = play_rounds(new_bank(4, RULES, 5), range(1, 15), None)
    assert not events
    assert len(bank.active) == 4


def test_births_stop_at_k_max_and_wait_between() -> None:
    rules = replace(RULES, k_max=4, birth_cooldown=3)
    bank, births = new_bank(2, rules, 0), []
    for number in range(1, 31):
        outcome = play_round(bank, number, even(bank), rejects=15, rules=rules)
        bank, births = outcome.bank, births + [e.round for e in outcome.events if e.change == "born"]
    assert births == [2, 6]
    assert len(bank.active) == 4


def test_changes_of_rejecters_are_summed_for_due_births() -> None:
    """Row 16: asked for in every round it would double what is sent of the shared expert."""
    bank, counted = new_bank(2, RULES, 0), counts({1: 7, 2: 7}, rejects=5)
    assert not is_birth_due(bank, RULES, counted, 0, 9)
    patient = replace(bank, rejected=1)
    assert is_birth_due(patient, RULES, counted, 0, 9)
    assert is_birth_due(patient, RULES, counted, 2, 9)
    assert not is_birth_due(patient, RULES, counted, 3, 9)  # row 6: those who were lost may be the rejecters
    assert not is_birth_due(patient, RULES, counts({1: 7}, rejects=2), 0, 9)
    assert not is_birth_due(replace(patient, last_birth=6), RULES, counted, 0, 9)
    assert is_birth_due(replace(patient, last_birth=5), RULES, counted, 0, 9)
    assert not is_birth_due(patient, replace(RULES, k_max=2), counted, 0, 9)


def test_a_birth_needs_the_change_of_rejecters() -> None:
    bank = replace(new_bank(2, RULES, 0), rejected=4)
    sums = RoundSums(counts(even(bank), rejects=9), {1: 7.0}, has_newborn=False)
    outcome = after_round(bank, RULES, sums, 9)
    assert not outcome.events
    assert outcome.bank.rejected == 5


def test_unused_experts_are_pruned_after_prune_patience() -> None:
    bank = new_bank(3, RULES, 0)
    bank, events = play_rounds(bank, range(1, 4), {1: 7, 2: 8})
    assert not events  # its grace
    bank, events = play_rounds(bank, range(4, 20), {1: 7, 2: 8})
    [event] = events
    assert (event.change, event.expert, event.round) == ("pruned", 3, 6)
    assert event.reason == (
        "the average share of members that used it is 0.000, below 0.02 in 3 rounds; 0 of 15 used it in this "
        "round"
    )
    assert bank[3].status == "archived"
    assert (bank[3].ended, bank[3].prior) == (6, 0.0)
    assert sum(expert.prior for expert in bank.active) == pytest.approx(1)


def test_a_newborn_begins_without_strikes_and_in_grace() -> None:
    """Defect 5: a strike in its birth round made a patience of 3 one of 2; and it begins in grace."""
    bank = replace(new_bank(2, RULES, 0), rejected=1)
    bank = play_round(bank, 10, even(bank), rejects=5).bank
    assert (bank[3].utilisation, bank[3].strikes, bank[3].grace_until) == (None, 0, 13)
    bank, events = play_rounds(bank, range(11, 14), {1: 7, 2: 8})
    assert not events
    assert bank[3].strikes == 0
    _, events = play_rounds(bank, range(14, 30), {1: 7, 2: 8})
    assert [(event.change, event.expert, event.round) for event in events] == [("pruned", 3, 16)]


def test_use_between_the_limits_keeps_strikes_unchanged() -> None:
    bank = new_bank(2, RULES, 0)
    members = 100

    def after(bank: Bank, number: int, users: int) -> Bank:
        return play_round(bank, number, {1: 50, 2: users}, members=members).bank

    bank = after(bank, 10, 0)
    assert bank[2].strikes == 1
    between = after(bank, 11, 6)  # average .03
    assert between[2].strikes == 1
    assert after(between, 12, 20)[2].strikes == 0
    assert after(between, 12, 0)[2].strikes == 2


def test_prunings_are_spaced_and_keep_one_expert() -> None:
    bank, events = play_rounds(new_bank(4, RULES, 0), range(1, 30), {})
    assert [(event.expert, event.round) for event in events] == [(1, 6), (2, 9), (3, 12)]
    assert [expert.expert for expert in bank.active] == [4]
    assert bank[4].prior == pytest.approx(1)


def test_expert_numbers_are_never_reused() -> None:
    """Row 17: routers, optimisers and feedback would meet a stranger in a slot that was filled again."""
    bank, _ = play_rounds(new_bank(3, RULES, 0), range(1, 8), {1: 7, 2: 8})
    assert bank[3].status == "archived"
    bank = replace(bank, rejected=1)
    bank = play_round(bank, 8, {1: 7, 2: 8}, rejects=6).bank
    assert [expert.expert for expert in bank.experts] == [1, 2, 3, 4]
    assert [expert.expert for expert in bank.active] == [1, 2, 4]


def test_equivalent_experts_are_merged_in_the_second_round() -> None:
    bank = new_bank(3, RULES, 0)
    users = {1: 4, 2: 5, 3: 6}
    graced = play_round(bank, 3, users, costs=like((1, 3)))
    assert not graced.bank.alike
    once = play_round(graced.bank, 4, users, costs=like((1, 3)))
    assert not once.events
    assert not play_round(once.bank, 5, users).bank.alike  # not measured: counted anew
    merged = play_round(once.bank, 5, users, costs=like((1, 3)))
    [event] = merged.events
    assert (event.change, event.expert, event.peer) == ("merged", 1, 3)
    assert event.reason == (
        "expert 3 costs its 4 members less than 0.0000 of the loss without a specialist, and it costs the 6 "
        "of expert 3 less than 0.0000: at most 0.02 in 2 rounds in a row"
    )
    assert event.numbers == {
        "bound": 0.0,
        "bound_peer": 0.0,
        "margin": 0.02,
        "rounds": 2,
        "users": 4,
        "users_peer": 6,
    }
    assert (merged.bank[1].status, merged.bank[1].merged_into) == ("merged", 3)
    assert merged.bank[3].prior == pytest.approx(10 / 15, rel=1e-3)
    assert sum(expert.prior for expert in merged.bank.active) == pytest.approx(1)


def test_the_older_of_equally_used_experts_stays() -> None:
    bank = replace(new_bank(3, RULES, 0), alike={(2, 3): 1})
    merged = play_round(bank, 9, even(bank), costs=like((2, 3)))
    assert [(event.expert, event.peer) for event in merged.events] == [(3, 2)]


def test_bounds_are_told_by_whose_members_pay() -> None:
    bank = replace(new_bank(2, RULES, 0), alike={(1, 2): 1})
    costs = {(1, 2): Cost(5, 0.05, 5e-4), (2, 1): Cost(9, 0.0, 0.0)}
    merged = play_round(bank, 9, {1: 5, 2: 9}, costs=costs)
    [event] = merged.events
    assert (event.expert, event.peer) == (1, 2)
    assert (event.numbers["bound"], event.numbers["bound_peer"]) == pytest.approx((0.01, 0.0))


def test_an_unused_expert_is_merged_by_members_of_the_other() -> None:
    bank = replace(new_bank(3, RULES, 0), alike={(1, 2): 1, (1, 3): 1})
    costs = {(2, 1): Cost(6, 0.006, 1e-5), (2, 3): Cost(6, 6.0, 6.0)}
    merged = play_round(bank, 9, {1: 0, 2: 6, 3: 2}, costs=costs)
    [event] = merged.events
    assert (event.expert, event.peer, event.numbers["bound"]) == (1, 2, 0.0)
    assert event.reason == (
        "nobody used it, and it costs the 6 of expert 2 less than 0.0017 of the loss without a specialist: "
        "at most 0.02 in 2 rounds in a row"
    )


def test_an_expert_of_few_members_is_not_merged() -> None:
    """Two members are below `k_min`: what they would lose is not known."""
    bank = replace(new_bank(2, RULES, 0), alike={(1, 2): 9})
    assert not play_round(bank, 9, {1: 2, 2: 6}, costs={(2, 1): Cost(6, 0.0, 0.0)}).events


def test_the_cheapest_pair_of_experts_is_merged() -> None:
    bank = replace(new_bank(4, RULES, 0), alike={(1, 2): 1, (3, 4): 1, (2, 4): 1})
    costs = like((1, 2), cost=0.01) | like((3, 4)) | like((2, 4), cost=0.005)
    merged = play_round(bank, 9, even(bank), costs=costs)
    assert [(event.expert, event.peer) for event in merged.events] == [(4, 3)]
    assert merged.bank.alike == {(1, 2): 2}


def test_rounds_decide_prior_birth_prune_merge_in_order() -> None:
    rules = replace(RULES, merge_patience=1)
    bank = replace(new_bank(4, rules, 0), rejected=1)
    bank = replace(bank, experts=(*bank.experts[:3], replace(bank[4], strikes=2, utilisation=0.0)))
    costs = like((1, 2), (1, 4), (1, 5), cost=0.01) | like((1, 4))
    outcome = play_round(bank, 9, {1: 3, 2: 9, 4: 0}, rejects=6, rules=rules, costs=costs)
    assert [(event.change, event.expert) for event in outcome.events] == [
        ("born", 5),
        ("pruned", 4),
        ("merged", 1),  # with 2: neither the newborn nor the pruned expert takes part
    ]
    assert outcome.bank[2].status == "active"
    assert sum(expert.prior for expert in outcome.bank.active) == pytest.approx(1)


@pytest.mark.parametrize("count", [0, 13])
def test_banks_begin_with_1_to_k_max_experts(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 12"):
        new_bank(count, RULES, 5)
