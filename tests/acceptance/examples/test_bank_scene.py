"""The scene of a bank of experts: its expectations, and the scene itself with one seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_agent.experts.memory import Choice
from examples.bank_scene.cast import COORDINATOR_KILL, LEAVES_AFTER, TRAINING_KILL, UNMASKING_KILL, Cast
from examples.bank_scene.checks import failures, separated_from
from examples.bank_scene.narration import lines_of
from examples.bank_scene.record import Kill, Record, RoundFacts
from examples.bank_scene.report import PICTURE, RECORD, write
from schemas.messages.experts import BankRoundView, ExpertEvent, ExpertView
from studies.bank_record import BankRecord
from studies.coordinator_process import quiet_environment

GROUPS = {f"{group}-{number}": group for group in "abcd" for number in (1, 2, 3)} | {
    "d-late-1": "d",
    "d-late-2": "d",
    "d-late-3": "d",
    "a-new": "a",
}
FOUNDERS, FOURTH, LATE = list(GROUPS)[:9], list(GROUPS)[9:12], list(GROUPS)[12:15]
ROUNDS = 10


def choice(expert: int, number: int, *, rejects: bool = False, first: bool = False) -> Choice:
    return Choice(
        responsibilities={expert: 1.0},
        trained=(expert,),
        exploring=number <= 2,
        fit=0.5,
        regret=None if first else 0.1,
        rejects=rejects,
    )


def choices(number: int) -> dict[str, Choice]:
    """Return the choices: a, b, c on 1, 2, 3; d on 4, its late silos on 5 until both are merged."""
    chosen = {
        name: choice(1 + "abc".index(GROUPS[name]), number, first=number == 1)
        for name in FOUNDERS
        if number <= 7 or GROUPS[name] != "c"
    }
    if number > 4:
        expert = 4 if number > 6 else 1
        chosen |= {n: choice(expert, number, rejects=number == 6, first=number == 5) for n in FOURTH}
    if number > 5:
        expert = 1 if number < 8 else 5 if number == 8 else 4
        chosen |= {n: choice(expert, number, rejects=number == 7, first=number == 6) for n in LATE}
    if number > 9:
        chosen["a-new"] = choice(1, number, first=True)
    return chosen


def event(change: str, number: int, expert: int, peer: int | None, **numbers: float) -> dict[str, Any]:
    return {
        "change": change,
        "round": number,
        "expert": expert,
        "peer": peer,
        "reason": f"{change} for a reason",
        "numbers": numbers,
    }


def record() -> Record:
    """Return a scene that meets all expectations."""
    rounds = [
        RoundFacts(
            round=number,
            seconds=1.0,
            counted=len(choices(number)),
            sessions=["counts done", "sum done"],
            choices=choices(number),
            served={},
        )
        for number in range(1, ROUNDS + 1)
    ]
    events = [
        event("born", 6, 4, 0, rejects=3, needed=3),
        event("born", 7, 5, 0, rejects=3, needed=3),
        event("merged", 8, 5, 4, bound=0.01, bound_peer=0.004, margin=0.02),
        event("pruned", 9, 3, None, users=0, utilisation=0.05),
    ]
    kills = [("training", "a-1"), ("between masked input and unmasking", "b-1"), ("coordinator", "it")]
    return Record(
        seed=0,
        groups=GROUPS,
        arrivals={0: FOUNDERS, 4: FOURTH, 5: LATE, 9: ["a-new"]},
        leaves_after=7,
        leaving=[name for name in FOUNDERS if GROUPS[name] == "c"],
        newcomer="a-new",
        rounds=rounds,
        bank=BankRecord(
            experts=[expert(number) for number in range(1, 6)],
            rounds=[counts(facts) for facts in rounds],
            events=[ExpertEvent.model_validate(entry) for entry in events],
        ),
        kills=[
            Kill(round=2, name=silo, phase=phase, process=1, next_process=2, progress="")  # type: ignore[arg-type]
            for phase, silo in kills
        ],
        seconds=10.0,
    )


def counts(facts: RoundFacts) -> BankRoundView:
    used = [choice.trained[0] for choice in facts.choices.values()]
    return BankRoundView(
        round=facts.round,
        members=len(used),
        users={str(expert): used.count(expert) for expert in set(used)},
        rejects=sum(choice.rejects for choice in facts.choices.values()),
    )


def expert(number: int) -> ExpertView:
    shown = {"status": "active", "born": 0, "ended": None, "parent": None, "merged_into": None, "prior": 0.5}
    return ExpertView.model_validate(
        {"expert": number, **shown, "utilisation": 0.5, "revision": 1, "digest": None, "bytes": 0}
    )


def test_a_scene_as_expected_has_no_failures() -> None:
    assert failures(record()) == []
    assert separated_from(record()) == 3


def move(scene: Record, names: list[str], numbers: range, to: int) -> None:
    for number in numbers:
        for name in names:
            before = scene.rounds[number - 1].choices[name]
            scene.rounds[number - 1].choices[name] = before.model_copy(update={"trained": (to,)})


def without(change: str) -> Callable[[Record], None]:
    def forget(scene: Record) -> None:
        scene.bank.events[:] = [event for event in scene.bank.events if event.change != change]

    return forget


def drop_a_member(scene: Record) -> None:
    scene.rounds[2] = scene.rounds[2].model_copy(update={"counted": 8})


def leave_one_behind(scene: Record) -> None:
    move(scene, ["a-1"], range(4, 5), 2)


def misname_rejects(scene: Record) -> None:
    next(e for e in scene.bank.events if e.change == "born").numbers["rejects"] = 4


def reject_elsewhere(scene: Record) -> None:
    before = scene.rounds[5].choices
    before["a-1"], before["d-1"] = (
        before["a-1"].model_copy(update={"rejects": True}),
        before["d-1"].model_copy(update={"rejects": False}),
    )


def merge_strangers(scene: Record) -> None:
    index = next(i for i, e in enumerate(scene.bank.events) if e.change == "merged")
    scene.bank.events[index] = scene.bank.events[index].model_copy(update={"peer": 2})


def merge_at_a_cost(scene: Record) -> None:
    next(e for e in scene.bank.events if e.change == "merged").numbers["bound"] = 0.03


def archive_too_early(scene: Record) -> None:
    index = next(i for i, e in enumerate(scene.bank.events) if e.change == "pruned")
    scene.bank.events[index] = scene.bank.events[index].model_copy(update={"round": 6})


def send_the_newcomer_elsewhere(scene: Record) -> None:
    move(scene, ["a-new"], range(10, 11), 2)


def train_the_newcomer_before(scene: Record) -> None:
    before = scene.rounds[9].choices["a-new"]
    scene.rounds[9].choices["a-new"] = before.model_copy(update={"regret": 0.2})


def spare_the_coordinator(scene: Record) -> None:
    scene.kills.pop()


def keep_the_process(scene: Record) -> None:
    scene.kills[0] = scene.kills[0].model_copy(update={"next_process": 1})


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (drop_a_member, "round 3 counts 8 of 9 silos"),
        (leave_one_behind, "the founding groups are separate from round None on"),
        (without("born"), "no expert was born after d had joined"),
        (misname_rejects, "the birth of expert 4 names 4 members who reject all"),
        (reject_elsewhere, "the birth of expert 4 is due to silos of {'a': 1, 'd': 2}"),
        (merge_strangers, "expert 5 was merged into 2, and they trained"),
        (merge_at_a_cost, "expert 5 was merged at a cost above the margin"),
        (without("pruned"), "expert 3, which c used until it left, was not archived"),
        (archive_too_early, "expert 3 of c was archived after round 6"),
        (send_the_newcomer_elsewhere, "the newcomer chose expert 2 in round 10, and its group {1}"),
        (train_the_newcomer_before, "the newcomer had trained before it chose"),
        (spare_the_coordinator, "killed were [('a-1', 'training')"),
        (keep_the_process, "a-1 has the same process id"),
    ],
)
def test_a_spoilt_scene_is_a_failure(spoil: Callable[[Record], None], sentence: str) -> None:
    scene = record()
    spoil(scene)
    assert any(sentence in failure for failure in failures(scene)), failures(scene)


def test_lines_of_a_round_name_groups_and_reasons() -> None:
    assert lines_of(record(), 6) == [
        "round 6: 15 members in 1 s, 3 reject all; expert x silos: a 1x3; b 2x3; c 3x3; d 1x6",
        "    expert 4 born after round 6: born for a reason",
    ]
    assert lines_of(record(), 8)[1] == "    expert 5 merged into 4 after round 8: merged for a reason"
    assert "drawn at random" in lines_of(record(), 1)[0]


def test_a_scene_is_written_and_read_again(tmp_path: Path) -> None:
    write(record(), tmp_path)
    assert Record.model_validate_json((tmp_path / RECORD).read_bytes()) == record()
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_the_cast_has_fifteen_members_of_three_groups() -> None:
    cast = Cast.of(0)
    assert len(cast.members(1)) == 15
    assert len({cast.group_of[name] for name in cast.members(1)}) == 3
    assert cast.fourth_group not in {cast.group_of[name] for name in cast.members(1)}
    assert cast.group_of[cast.newcomer] in {cast.group_of[name] for name in cast.members(1)}
    assert not set(cast.leaving) & set(cast.members(LEAVES_AFTER + 1))
    secure_sum = cast.plan.privacy.secure_sum
    assert secure_sum is not None
    assert secure_sum.masking == "pairwise"
    assert len({TRAINING_KILL, COORDINATOR_KILL, UNMASKING_KILL}) == 3


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_scene_runs_without_failures(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.bank_scene", "--seed", "0", "--out", str(tmp_path)],
        env=quiet_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert failures(Record.model_validate_json((tmp_path / RECORD).read_bytes())) == []
