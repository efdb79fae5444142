"""Decide which experts of a bank are born, pruned and merged after a round. Pure.

A round's sums give the number of members that used each expert, the sums of responsibilities of those that
were summed, what other experts would cost their members, and the number of members whom no expert fits.
Nothing in these decisions is about one member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coordinator.experts.bank import Bank, Event, Expert, Outcome, RoundCounts, RoundSums
from coordinator.experts.equivalence import MARGIN, equivalent_pairs
from coordinator.strategies.bank_rules import Rules
from coordinator.totals import GroupCounts
from schemas.maths.bank import REJECT, SHARED, birth_minimum, expert_of, next_prior, normalised


def round_counts(counted: GroupCounts) -> RoundCounts:
    """Return a round's counts by expert; the groups are those of experts, and `reject`."""
    users = {
        expert: count for group, count in counted.groups.items() if (expert := expert_of(group)) is not None
    }
    return RoundCounts(counted.members, users, counted.groups.get(REJECT, 0))


def is_birth_due(bank: Bank, rules: Rules, counts: RoundCounts, lost: int, number: int) -> bool:
    """Whether the sum of round `number` is to have the change of the members who reject all experts.

    `lost` is the number of counted members that are absent by now.
    """
    # The change doubles what is sent of the shared expert: it is asked for only if the counts call for a
    # birth.
    return (
        _is_rejected(rules, counts)
        and counts.rejects - lost >= rules.k_min
        and bank.rejected + 1 >= rules.birth_patience
        and len(bank.active) < rules.k_max
        and _is_over(bank.last_birth, rules.birth_cooldown, number)
    )


def after_round(bank: Bank, rules: Rules, sums: RoundSums, number: int) -> Outcome:
    """Return the bank after round `number`, whose M-step is done: prior, birth, prune, merge, in this order.

    A newborn has no part in the counts of its round.
    """
    bank = _with_prior(bank, sums)
    bank = _with_utilisation(bank, rules, sums.counts, number)
    events: list[Event] = []
    for decide in (_birth, _prune, _merge):
        bank, event = decide(bank, rules, sums, number)
        events += [event] if event is not None else []
    return Outcome(bank, tuple(events))


def _with_prior(bank: Bank, sums: RoundSums) -> Bank:
    prior = next_prior({expert.expert: expert.prior for expert in bank.active}, sums.responsibilities)
    return _with_priors(bank, prior)


def _with_utilisation(bank: Bank, rules: Rules, counts: RoundCounts, number: int) -> Bank:
    """Average each expert's share of members, and count strikes after its grace."""
    decay = rules.utilisation_decay
    for expert in bank.active:
        share = counts.users.get(expert.expert, 0) / counts.members
        before = share if expert.utilisation is None else expert.utilisation
        utilisation = decay * before + (1 - decay) * share
        # Two thresholds: strikes are collected below the lower one, and forgiven only above the higher one.
        strikes = expert.strikes if utilisation <= rules.prune_until else 0
        if number > expert.grace_until and utilisation < rules.prune_below:
            strikes += 1
        bank = _with_expert(bank, replace(expert, utilisation=utilisation, strikes=strikes))
    return bank


def _birth(bank: Bank, rules: Rules, sums: RoundSums, number: int) -> tuple[Bank, Event | None]:
    counts = sums.counts
    bank = replace(bank, rejected=bank.rejected + 1 if _is_rejected(rules, counts) else 0)
    if not sums.has_newborn:
        return bank, None
    expert = 1 + max(peer.expert for peer in bank.experts)
    count = len(bank.active)
    born = Expert(expert, number, number + rules.grace, 1 / (count + 1), parent=SHARED)
    needed = birth_minimum(counts.members, rules.birth_share, rules.k_min)
    event = Event(
        "born",
        number,
        expert,
        f"{counts.rejects} of {counts.members} members fit no expert, at least {needed} in "
        f"{bank.rejected} rounds in a row; {count} of {rules.k_max} specialists were active",
        {
            "rejects": counts.rejects,
            "members": counts.members,
            "needed": needed,
            "rounds": bank.rejected,
            "active": count,
        },
        peer=SHARED,
    )
    # The newborn gets an equal share; all others give it in proportion to theirs.
    prior = {peer.expert: peer.prior * count / (count + 1) for peer in bank.active}
    bank = replace(bank, experts=(*bank.experts, born), rejected=0, last_birth=number)
    return _with_priors(bank, normalised({**prior, expert: born.prior})), event


def _prune(bank: Bank, rules: Rules, sums: RoundSums, number: int) -> tuple[Bank, Event | None]:
    """Archive the least used of the experts with enough strikes; the last active one stays."""
    idle = [expert for expert in bank.active if expert.strikes >= rules.prune_patience]
    if not idle or len(bank.active) < 2 or not _is_over(bank.last_prune, rules.prune_cooldown, number):
        return bank, None
    expert = min(idle, key=lambda candidate: (candidate.utilisation or 0.0, candidate.expert))
    utilisation, users = expert.utilisation or 0.0, sums.counts.users.get(expert.expert, 0)
    event = Event(
        "pruned",
        number,
        expert.expert,
        f"the average share of members that used it is {utilisation:.3f}, below {rules.prune_below:g} in "
        f"{expert.strikes} rounds; {users} of {sums.counts.members} used it in this round",
        {
            "utilisation": utilisation,
            "below": rules.prune_below,
            "rounds": expert.strikes,
            "users": users,
            "members": sums.counts.members,
        },
    )
    archived = replace(expert, status="archived", ended=number, prior=0.0)
    bank = replace(_with_expert(bank, archived), last_prune=number)
    return _with_priors(bank, normalised({peer.expert: peer.prior for peer in bank.active})), event


def _merge(bank: Bank, rules: Rules, sums: RoundSums, number: int) -> tuple[Bank, Event | None]:
    """End one of two equivalent experts, the one with fewer members; one pair in a round."""
    # A newborn starts as a change of the shared expert, and would be merged before it has learnt its own
    # task.
    settled = {expert.expert for expert in bank.active if number > expert.grace_until}
    users = {expert.expert: sums.counts.users.get(expert.expert, 0) for expert in bank.active}
    unused = {expert for expert, count in users.items() if not count}
    equivalent = equivalent_pairs(sums.costs, sums.step, unused)
    pairs = {pair: bounds for pair, bounds in equivalent.items() if settled.issuperset(pair)}
    streaks = {pair: bank.alike.get(pair, 0) + 1 for pair in pairs}
    bank = replace(bank, alike=streaks)
    due_pairs = [pair for pair, rounds in streaks.items() if rounds >= rules.merge_patience]
    if not due_pairs:
        return bank, None
    pair = min(due_pairs, key=lambda candidate: (max(pairs[candidate]), candidate))
    # The older one if both have as many.
    survivor, ended = sorted(pair, key=lambda expert: (-users[expert], expert))
    bound, bound_peer = pairs[pair] if ended < survivor else reversed(pairs[pair])
    ended_costs = (
        f"expert {survivor} costs its {users[ended]} members less than {bound:.4f} of the loss without a "
        "specialist, and it"
        if users[ended]
        else "nobody used it, and it"
    )
    unit = "" if users[ended] else " of the loss without a specialist"
    event = Event(
        "merged",
        number,
        ended,
        f"{ended_costs} costs the {users[survivor]} of expert {survivor} less than {bound_peer:.4f}{unit}: "
        f"at most {MARGIN:g} in {streaks[pair]} rounds in a row",
        {
            "bound": bound,
            "bound_peer": bound_peer,
            "margin": MARGIN,
            "rounds": streaks[pair],
            "users": users[ended],
            "users_peer": users[survivor],
        },
        peer=survivor,
    )
    surviving_expert, ended_expert = bank[survivor], bank[ended]
    utilisation = (surviving_expert.utilisation or 0.0) + (ended_expert.utilisation or 0.0)
    bank = _with_expert(
        bank,
        replace(
            surviving_expert,
            prior=surviving_expert.prior + ended_expert.prior,
            utilisation=min(1.0, utilisation),
            strikes=0,
        ),
    )
    bank = _with_expert(
        bank, replace(ended_expert, status="merged", merged_into=survivor, ended=number, prior=0.0)
    )
    # Members of the ended expert measure the surviving one from the next round on: its streaks begin anew.
    remaining = {peers: rounds for peers, rounds in streaks.items() if not set(pair) & set(peers)}
    return replace(bank, alike=remaining), event


def _is_rejected(rules: Rules, counts: RoundCounts) -> bool:
    return counts.rejects >= birth_minimum(counts.members, rules.birth_share, rules.k_min)


def _is_over(last: int | None, cooldown: int, number: int) -> bool:
    return last is None or number - last > cooldown


def _with_expert(bank: Bank, expert: Expert) -> Bank:
    experts = (expert if peer.expert == expert.expert else peer for peer in bank.experts)
    return replace(bank, experts=tuple(experts))


def _with_priors(bank: Bank, prior: Mapping[int, float]) -> Bank:
    experts = (replace(peer, prior=prior.get(peer.expert, peer.prior)) for peer in bank.experts)
    return replace(bank, experts=tuple(experts))
