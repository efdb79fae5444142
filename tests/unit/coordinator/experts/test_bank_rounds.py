"""Rounds of a bank of experts: the summed groups, unchanged experts, and the served values."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.maths.bank import bank_tensor
from tests.scene.coordinator import Served
from tests.scene.rounds import LAYOUT
from tests.unit.coordinator.experts.bank_scene import BankScene, MemberUpdate, State, bank_scene

TOLERANCE = 1e-3
OF_NEITHER = {"merge_patience": 64, "prune_patience": 64}


def fills(state: State, expert: int) -> float:
    """Return the value of all tensors of an expert, which scenes fill alike; 0 = the shared one."""
    names = [bank_tensor(expert, name) if expert else name for name in LAYOUT]
    values = np.concatenate([state[name].ravel() for name in names])
    np.testing.assert_allclose(values, values[0], atol=TOLERANCE)
    return float(values.mean())


def summed_groups(scene: BankScene) -> set[str]:
    """Return the specialists of the newest sum, and `new` for the change of those who reject all."""
    return {name.partition(".")[0] for name in scene.summed if "." in name}


def events(scene: BankScene) -> list[tuple[str, int, int | None]]:
    return [(event["change"], event["expert"], event["peer"]) for event in scene.shown()["events"]]


@pytest.mark.slow
def test_experts_change_only_with_enough_members(coordinator: Served) -> None:
    scene = bank_scene(coordinator, 5, **OF_NEITHER)
    changes = [
        MemberUpdate(1, 0.4, 0.1),
        MemberUpdate(1, 0.2, 0.1),
        MemberUpdate(1, 0.6, 0.1),
        MemberUpdate(2, 1.0, 0.3),
        MemberUpdate(2, 1.0, 0.4),
    ]
    scene.run_round(1, changes)
    assert summed_groups(scene) == {"x1"}
    state, index, _ = scene.begin(scene.silos[0], 2)
    assert fills(state, 0) == pytest.approx(0.2, abs=TOLERANCE)
    assert fills(state, 1) == pytest.approx(0.4, abs=TOLERANCE)
    assert not any(state[bank_tensor(2, name)].any() for name in LAYOUT)
    assert [(entry.expert, entry.revision, entry.digest is None) for entry in index.experts] == [
        (1, 1, False),
        (2, 0, True),
    ]
    shown = scene.shown()
    assert shown["rounds"] == [{"round": 1, "members": 5, "users": {"1": 3, "2": 2}, "rejects": 0}]
    late = coordinator.enrol(scene.federation_id, "late")
    assert scene.begin(late, 2)[1] == index
    scene.silos.append(late)
    scene.run_round(2, [*[MemberUpdate(2, 0.5)] * 4, *[MemberUpdate(1, 0.5)] * 2])
    state, index, _ = scene.begin(late, 3)
    assert [(entry.expert, entry.revision) for entry in index.experts] == [(1, 1), (2, 2)]
    assert (fills(state, 1), fills(state, 2)) == pytest.approx((0.4, 0.5), abs=TOLERANCE)


def test_members_weigh_by_their_responsibility(coordinator: Served) -> None:
    scene = bank_scene(coordinator, 3, **OF_NEITHER)
    scene.run_round(
        1,
        [
            MemberUpdate(1, 0.8, responsibility=0.5),
            MemberUpdate(1, 0.2, responsibility=0.25),
            MemberUpdate(1, 0.2, responsibility=0.25),
        ],
    )
    state, index, _ = scene.begin(scene.silos[0], 2)
    assert fills(state, 1) == pytest.approx(0.5, abs=2 * TOLERANCE)
    assert {entry.expert: entry.prior for entry in index.experts} == pytest.approx({1: 0.5, 2: 0.5})


def test_a_newborn_is_the_mean_change_of_rejecters(coordinator: Served) -> None:
    scene = bank_scene(coordinator, 6, **OF_NEITHER)
    others = [MemberUpdate(1, 0.3)] * 3
    scene.run_round(1, [*others, *[MemberUpdate(2, 0.1, shared, rejects=True) for shared in (0.9, 0.3, 0.6)]])
    assert summed_groups(scene) == {"x1", "x2", "new"}
    state, index, _ = scene.begin(scene.silos[0], 2)
    assert fills(state, 3) == pytest.approx(0.6, abs=TOLERANCE)
    assert fills(state, 0) == pytest.approx(0.3, abs=TOLERANCE)
    assert [entry.expert for entry in index.experts] == [1, 2, 3]
    assert sum(entry.prior for entry in index.experts) == pytest.approx(1)
    assert events(scene) == [("born", 3, 0)]
    assert "3 of 6 members fit no expert" in scene.shown()["events"][0]["reason"]


@pytest.mark.slow
def test_changes_of_rejecters_are_summed_only_at_births(coordinator: Served) -> None:
    """Row 16: a change of theirs in every round would double what all members send of the shared expert."""
    scene = bank_scene(coordinator, 6, **OF_NEITHER, birth_patience=2)
    changes = [*[MemberUpdate(1, 0.3)] * 3, *[MemberUpdate(2, 0.1, 0.5, rejects=True)] * 3]
    summed = []
    for number in (1, 2):
        scene.run_round(number, changes)
        summed.append("new" in summed_groups(scene))
    assert summed == [False, True]
    assert events(scene) == [("born", 3, 0)]


@pytest.mark.parametrize("rejecting", [2, 4], ids=["two reject", "all but one reject"])
def test_small_groups_of_rejecters_cause_no_birth(coordinator: Served, rejecting: int) -> None:
    """The newborn is the sum of those who reject; what it lacks of the sum of all is the others'."""
    scene = bank_scene(coordinator, 5, **OF_NEITHER)
    scene.run_round(
        1, [*[MemberUpdate(1, 0.3)] * (5 - rejecting), *[MemberUpdate(2, 0.1, 0.9, rejects=True)] * rejecting]
    )
    assert events(scene) == []
    assert [entry.expert for entry in scene.begin(scene.silos[0], 2)[1].experts] == [1, 2]


def test_an_unused_expert_is_archived(coordinator: Served) -> None:
    scene = bank_scene(coordinator, 3, merge_patience=64, prune_patience=1)
    scene.run_round(1, [MemberUpdate(1, 0.3)] * 3)
    assert events(scene) == [("pruned", 2, None)]
    assert [entry.expert for entry in scene.begin(scene.silos[0], 2)[1].experts] == [1]
    assert {expert["expert"]: expert["status"] for expert in scene.shown()["experts"]} == {
        1: "active",
        2: "archived",
    }


@pytest.mark.slow
def test_equivalent_experts_are_merged(coordinator: Served) -> None:
    scene = bank_scene(coordinator, 7, merge_patience=1, prune_patience=64)
    scene.run_round(
        1, [*[MemberUpdate(1, 0.2, costs={2: 0.001})] * 3, *[MemberUpdate(2, 0.6, costs={1: 0.002})] * 4]
    )
    assert events(scene) == [("merged", 1, 2)]
    numbers = scene.shown()["events"][0]["numbers"]
    assert (numbers["users"], numbers["users_peer"]) == (3, 4)
    assert 0.001 < numbers["bound"] < 0.02
    state, index, _ = scene.begin(scene.silos[0], 2)
    assert [(entry.expert, entry.revision, entry.prior) for entry in index.experts] == [(2, 1, 1.0)]
    assert fills(state, 2) == pytest.approx(0.6, abs=TOLERANCE)
    scene.run_round(2, [MemberUpdate(2, 0.1)] * 7)
    assert fills(scene.begin(scene.silos[0], 3)[0], 2) == pytest.approx(0.7, abs=2 * TOLERANCE)


@pytest.mark.slow
def test_an_unused_twin_is_merged(coordinator: Served) -> None:
    scene = bank_scene(coordinator, 3, merge_patience=1, prune_patience=64)
    scene.run_round(1, [MemberUpdate(1, 0.3, costs={2: 0.001})] * 3)
    assert events(scene) == [("merged", 2, 1)]
    assert scene.shown()["experts"][1]["merged_into"] == 1
    state, index, _ = scene.begin(scene.silos[0], 2)
    assert [entry.expert for entry in index.experts] == [1]
    assert fills(state, 1) == pytest.approx(0.3, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_first", "of_second"),
    [
        ([{2: 0.4}] * 3, [{1: 0.001}] * 3),
        ([{2: 0.0}] * 3, [{1: 0.0}] * 2),
        ([{2: 0.0}, {2: 0.0}, {}], [{1: 0.0}] * 3),
        ([{2: 0.0}, {2: 0.0}, {2: 0.2}], [{1: 0.0}] * 3),
    ],
    ids=["other tasks", "below k_min", "without a probe set", "hurts a member"],
)
def test_costly_or_unmeasured_merges_are_left_out(
    coordinator: Served, of_first: list[dict[int, float]], of_second: list[dict[int, float]]
) -> None:
    scene = bank_scene(coordinator, len(of_first) + len(of_second), merge_patience=1, prune_patience=64)
    changes = [MemberUpdate(1, 0.2, costs=costs) for costs in of_first]
    changes += [MemberUpdate(2, 0.6, costs=costs) for costs in of_second]
    scene.run_round(1, changes)
    assert events(scene) == []


def test_a_strategy_with_experts_needs_sums(coordinator: Served) -> None:
    refused = coordinator.admin.post(
        "/v1/federations", json={"name": "plain", "strategy": {"name": "fed_vemoe"}}
    )
    assert refused.status_code == 422
    assert refused.json()["field"] == "privacy.secure_sum"
