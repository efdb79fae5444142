"""The expectations of a scene; each failed one is a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from examples.bank_scene.record import Record
from schemas.messages.experts import ExpertEvent

SEPARATED_BY: Final = 8
"""The round by which the founding groups are on experts of their own; they explore in the first four."""

DRAWN_BY_LOSS: Final = 3
"""The round from which what silos draw follows their losses more than chance: the temperature is .5."""

_KILLED = 3


def failures(record: Record) -> list[str]:
    """Return a sentence for each failed expectation; empty if none failed."""
    checks = (_members, _separation, _birth, _merge, _prune, _newcomer, _kills, _end)
    return [sentence for check in checks for sentence in check(record)]


def separated_from(record: Record) -> int | None:
    """Return the round from which the founding groups are separate until others join; None = never."""
    last = min(after for after in record.arrivals if after)
    since = None
    for number in range(last, 0, -1):
        if not record.is_separated(number):
            break
        since = number
    return since


def birth_groups(record: Record, event: ExpertEvent) -> dict[str, int]:
    """Return how many silos of each group rejected all experts in the round of a birth."""
    counts: dict[str, int] = {}
    for name, choice in record.facts(event.round).choices.items():
        if choice.rejects:
            counts[record.groups[name]] = counts.get(record.groups[name], 0) + 1
    return counts


def trained_groups(record: Record, expert: int, *, until: int) -> dict[str, int]:
    """Return how often silos trained an expert by a round, by group; not while they drew by chance alone."""
    counts: dict[str, int] = {}
    for facts in record.rounds[DRAWN_BY_LOSS - 1 : until]:
        for name, choice in facts.choices.items():
            if expert in choice.trained:
                counts[record.groups[name]] = counts.get(record.groups[name], 0) + 1
    return counts


def _members(record: Record) -> Iterator[str]:
    for number, facts in enumerate(record.rounds, 1):
        expected = {name for after, names in record.arrivals.items() if after < number for name in names}
        if number > record.leaves_after:
            expected -= set(record.leaving)
        if set(facts.choices) != expected or facts.counted != len(expected):
            missing = ", ".join(sorted(expected - set(facts.choices)))
            yield f"round {number} counts {facts.counted} of {len(expected)} silos, without {missing}"


def _separation(record: Record) -> Iterator[str]:
    since = separated_from(record)
    if since is None or since > SEPARATED_BY:
        yield f"the founding groups are separate from round {since} on, and not by round {SEPARATED_BY}"


def _birth(record: Record) -> Iterator[str]:
    group, arrival = _fourth(record)
    born = [event for event in record.bank.events if event.change == "born" and event.round > arrival]
    if not born:
        yield f"no expert was born after {group} had joined"
    counts = {entry.round: entry for entry in record.bank.rounds}
    for event in born:
        entry, reason = counts[event.round], event.numbers
        rejecting = sum(choice.rejects for choice in record.facts(event.round).choices.values())
        if not (reason["rejects"] == entry.rejects == rejecting >= reason["needed"]):
            yield (
                f"the birth of expert {event.expert} names {reason['rejects']:.0f} members who reject all; "
                f"the counts say {entry.rejects}, {rejecting} silos did, "
                f"and {reason['needed']:.0f} are needed"
            )
        if list(birth_groups(record, event)) != [group]:
            yield f"the birth of expert {event.expert} is due to silos of {birth_groups(record, event)}"
    last = len(record.rounds)
    users = record.experts_of(group, last)
    origins = {event.expert for event in born}
    if len(users) != 1 or not set(users) <= origins:
        yield f"at the end {group} is on {users}, and the experts born for it are {sorted(origins)}"


def _merge(record: Record) -> Iterator[str]:
    # None need be: all silos of a task choose the better one of two equal experts.
    for event in (event for event in record.bank.events if event.change == "merged"):
        both = (event.expert, event.peer or 0)
        served = [trained_groups(record, expert, until=event.round) for expert in both]
        main = [max(groups, key=lambda name: groups[name], default=None) for groups in served]
        if main[0] is None or main[0] != main[1]:
            yield f"expert {event.expert} was merged into {event.peer}, and they trained {served}"
        if max(event.numbers["bound"], event.numbers["bound_peer"]) > event.numbers["margin"]:
            yield f"expert {event.expert} was merged at a cost above the margin: {event.reason}"


def _prune(record: Record) -> Iterator[str]:
    group = record.groups[record.leaving[0]]
    (expert, *others) = record.experts_of(group, record.leaves_after)
    ended = [e for e in record.bank.events if e.change == "pruned" and e.expert == expert]
    if others or not ended:
        yield f"expert {expert}, which {group} used until it left, was not archived"
    for event in ended:
        if event.round <= record.leaves_after or event.numbers["users"] != 0:
            yield f"expert {expert} of {group} was archived after round {event.round}: {event.reason}"


def _newcomer(record: Record) -> Iterator[str]:
    first = next(facts for facts in record.rounds if record.newcomer in facts.choices)
    choice, group = first.choices[record.newcomer], record.groups[record.newcomer]
    peers = {
        c.trained[0] for n, c in first.choices.items() if record.groups[n] == group and n != record.newcomer
    }
    if {choice.trained[0]} != peers or choice.exploring:
        yield f"the newcomer chose expert {choice.trained[0]} in round {first.round}, and its group {peers}"
    earlier = [facts.round for facts in record.rounds[: first.round - 1] if record.newcomer in facts.choices]
    if earlier or choice.fit is None or choice.regret is not None:
        yield f"the newcomer had trained before it chose, in rounds {earlier}"


def _kills(record: Record) -> Iterator[str]:
    phases = {kill.phase for kill in record.kills}
    if len(record.kills) != _KILLED or len(phases) != _KILLED:
        yield f"killed were {[(kill.name, kill.phase) for kill in record.kills]}"
    for kill in record.kills:
        if kill.process == kill.next_process:
            yield f"{kill.name} has the same process id as before it was killed"


def _end(record: Record) -> Iterator[str]:
    last = len(record.rounds)
    if not record.is_separated(last):
        shares = {group: record.experts_of(group, last) for group in record.present(last)}
        yield f"at the end the groups are on {shares}"


def _fourth(record: Record) -> tuple[str, int]:
    """Return the group that had no silo at the beginning, and the round after which it arrived."""
    founding = {record.groups[name] for name in record.arrivals[0]}
    return next(
        (record.groups[names[0]], after)
        for after, names in record.arrivals.items()
        if record.groups[names[0]] not in founding
    )
