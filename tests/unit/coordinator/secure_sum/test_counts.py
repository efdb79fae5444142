"""Counts before the sum of a strategy with groups, over HTTP: once per round, and its manifest of groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from coordinator.strategies import fedavg
from coordinator.totals import GroupCounts, JointValues, Outline, Total
from schemas.maths.adapter import Layout
from schemas.messages.secure_sum import SumStatus
from schemas.secure_sum.counts import counts_digest, groups_of
from schemas.secure_sum.encoding import largest_encoded
from schemas.secure_sum.segments import values_digest
from schemas.strategies.averages import FedAvgOptions
from tests.scene.coordinator import Served, slug
from tests.scene.forged_counts import forged_counts
from tests.scene.rounds import plan, running, values
from tests.scene.sum_members import (
    CONFIRM,
    KEYS,
    MASKED,
    SHARES,
    SumClient,
    SummedRound,
    make_ready,
)
from tests.scene.waiting import wait_until
from tests.unit.coordinator.secure_sum.test_sessions import send_all_steps

GROUPS = ("x0", "x1", "x2", "reject")
ALL, FEW = {"x0", "x1"}, {"x0", "x2"}


def with_experts(_: object, layout: Layout) -> Layout:
    return {f"x{expert}.{name}": shape for expert in (1, 2) for name, shape in layout.items()}


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Add two experts to `fedavg`; return the arguments of its step."""
    handed: dict[str, Any] = {}

    def counts(_: object, segments: Sequence[str]) -> tuple[str, ...]:
        handed["segments"] = segments
        return GROUPS

    def groups(_: object, outline: Outline, counted: GroupCounts) -> Collection[str]:
        handed["counted"] = counted
        return [group for group in counted.groups if group != "reject"]

    def step(_: object, joint: JointValues, total: Total) -> Any:
        handed["joint"], handed["summed"] = joint.segments, list(total.segments)
        return iter(())

    for name, fact in (("beside", with_experts), ("counts", counts)):
        monkeypatch.setattr(FedAvgOptions, name, fact)
    for name, method in (("groups", groups), ("step", step)):
        monkeypatch.setattr(fedavg.Strategy, name, method)
    return handed


def counting(
    served: Served, uses: list[Collection[str]], *, attempts: int = 3, **secure_sum: Any
) -> SummedRound:
    """Make clients ready; a client belongs to the groups of its place in `uses`."""
    clients = len(uses)
    summed = {"minimum": 3, "attempts": attempts, **secure_sum}
    rounds = {"total": 1, "min_clients": clients, "quorum": clients}
    federation_id, silos = running(served, clients, **plan(privacy={"secure_sum": summed}, rounds=rounds))
    digest = zeros_digest()
    for silo in silos:
        make_ready(silo, values=digest)
    members = [
        SumClient(silo, 1, values=digest, memberships=frozenset(used))
        for silo, used in zip(silos, uses, strict=True)
    ]
    return SummedRound(served, federation_id, members)


def zeros_digest() -> str:
    shared = {name: np.zeros_like(tensor) for name, tensor in values(0.0).items()}
    layout = {name: zeros.shape for name, zeros in shared.items()}
    state = shared | {name: np.zeros(shape, np.float32) for name, shape in with_experts(None, layout).items()}
    return values_digest(state, {name: state[name].shape for name in sorted(state)})


def in_session(scene: SummedRound, number: int) -> SumStatus:
    """Wait for a session, and return its status as its first member sees it."""

    def status() -> SumStatus | None:
        answer = scene.clients[0].status()
        return answer if answer is not None and answer.session == number else None

    return wait_until(status)


def send_all_messages(scene: SummedRound) -> None:
    """Send all steps of the current session for all clients."""
    terms = scene.clients[0].terms
    assert terms is not None
    if terms.masking == "none":
        scene.step(MASKED)
    else:
        send_all_steps(scene)


def take_counts(scene: SummedRound) -> SumStatus:
    """Play the counts; return the status of the sum that follows, after its members accepted it."""
    scene.begin()
    assert all(client.terms is not None and client.terms.kind == "counts" for client in scene.clients)
    send_all_messages(scene)
    status = in_session(scene, 2)
    scene.begin()
    return status


@pytest.mark.parametrize("masking", ["pairwise", "none"])
def test_sums_contain_only_groups_with_k_min_members(
    masking: str, coordinator: Served, bank: dict[str, Any]
) -> None:
    uses = [ALL, ALL, ALL, FEW, FEW]
    scene = counting(coordinator, uses, masking=masking)
    status = take_counts(scene)
    assert status.counts is not None
    assert status.terms is not None
    assert status.counts.groups == {"x0": 5, "x1": 3, "x2": 2, "reject": 0}
    assert status.counts.counted == sorted(client.silo.client_id for client in scene.clients)
    assert (status.kind, status.terms.counts, status.terms.lost) == ("sum", counts_digest(status.counts), 0)
    assert groups_of(status.terms.segments) == {"x1"}
    send_all_messages(scene)
    scene.wait_for(lambda view: view["state"] == "published")
    view = scene.view()
    sessions = [(s["number"], s["kind"], s["state"]) for s in view["secure_sum"]["sessions"]]
    assert sessions == [(1, "counts", "done"), (2, "sum", "done")]
    assert view["secure_sum"]["counted"] == 5
    factors = sorted({name.rpartition(".")[2] for name in values(0.0)})
    assert bank["segments"] == tuple(sorted([*factors, *(f"x{k}.{f}" for k in (1, 2) for f in factors)]))
    assert bank["joint"] == bank["segments"]
    assert {name.partition(".")[0] for name in bank["summed"] if "." in name} == {"x1"}
    assert bank["counted"] == GroupCounts(5, status.counts.groups)


def test_a_lost_member_shrinks_the_manifest_of_groups(coordinator: Served, bank: dict[str, Any]) -> None:
    """x1 has three counted members: any of them may be the absent one, so that it is not summed."""
    scene = counting(coordinator, [ALL, ALL, ALL, FEW, FEW, FEW, FEW], masking="none")
    before = take_counts(scene)
    assert before.terms is not None
    assert groups_of(before.terms.segments) == {"x1", "x2"}
    gone = scene.clients.pop()
    removed = coordinator.admin.delete(f"/v1/federations/{scene.federation_id}/clients/{gone.silo.client_id}")
    assert removed.status_code == 204
    scene.step(MASKED)
    after = in_session(scene, 3)
    assert after.terms is not None
    assert after.counts == before.counts  # they are not taken again
    assert (after.terms.kind, after.terms.lost) == ("sum", 1)
    assert groups_of(after.terms.segments) == {"x2"}
    scene.begin()
    send_all_messages(scene)
    view = scene.wait_for(lambda view: view["state"] == "published")
    sessions = [(s["kind"], s["state"], s["reason"]) for s in view["secure_sum"]["sessions"]]
    assert sessions == [
        ("counts", "done", None),
        ("sum", "aborted", "too few members are left of x1"),
        ("sum", "done", None),
    ]
    assert {name.partition(".")[0] for name in bank["summed"] if "." in name} == {"x2"}


def test_members_of_a_sum_have_confirmed_the_counts(coordinator: Served, bank: dict[str, Any]) -> None:
    """The others do not know which clients were counted, and would refuse."""
    scene = counting(coordinator, [ALL, ALL, ALL, ALL, ALL, ALL, ALL])
    scene.begin()
    for step in (KEYS, SHARES, MASKED):
        scene.step(step)
    gone = scene.clients.pop()
    removed = coordinator.admin.delete(f"/v1/federations/{scene.federation_id}/clients/{gone.silo.client_id}")
    assert removed.status_code == 204
    send_all_steps(scene, first=CONFIRM)
    status = in_session(scene, 2)
    assert status.terms is not None
    assert status.counts is not None
    assert (status.counts.members, status.terms.lost, len(status.terms.members)) == (7, 1, 6)


def test_failed_counts_and_sums_share_the_attempts(coordinator: Served, bank: dict[str, Any]) -> None:
    scene = counting(coordinator, [ALL, ALL, ALL], attempts=1)
    take_counts(scene)
    gone = scene.clients.pop()
    removed = coordinator.admin.delete(f"/v1/federations/{scene.federation_id}/clients/{gone.silo.client_id}")
    assert removed.status_code == 204
    scene.step(KEYS)
    view = scene.wait_for(lambda view: view["state"] == "abandoned")
    assert view["reason"] == "secure-sum-failed"
    assert [session["kind"] for session in view["secure_sum"]["sessions"]] == ["counts", "sum"]


def counting_until_masked(coordinator: Served, **secure_sum: Any) -> SummedRound:
    scene = counting(coordinator, [ALL, ALL, ALL, FEW, FEW], **secure_sum)
    scene.begin()
    for step in (KEYS, SHARES):
        scene.step(step)
    return scene


def forged(client: SumClient, values: list[int]) -> bytes:
    """Return the client's message with other counts; the blindings are no masks."""
    assert client.terms is not None
    client.message(MASKED)  # it has accepted the answer of step 1
    return forged_counts(client.terms, client.position, values, [5, 6, 7, 8], client.silo.key)


def test_spoilt_counts_abandon_the_round(coordinator: Served, bank: dict[str, Any]) -> None:
    scene = counting_until_masked(coordinator)
    victim = scene.clients[0]
    victim.sent[MASKED] = forged(victim, [1, 1, 0, 0])
    send_all_steps(scene, first=MASKED)
    view = scene.wait_for(lambda view: view["state"] == "abandoned")
    assert view["reason"] == "sum-out-of-range"


@pytest.mark.slow  # a phase of three seconds passes
def test_a_member_without_proof_drops_out(coordinator: Served, bank: dict[str, Any]) -> None:
    """It would have lifted the second expert from its two users over the minimum of three."""
    scene = counting_until_masked(coordinator, phase_seconds=3)
    liar = scene.clients.pop(0)
    refused = liar.put(MASKED, forged(liar, [1, 1, 3, 0]))
    assert (refused.status_code, slug(refused)) == (422, "masked-vector")
    assert "0 or 1" in refused.json()["detail"]
    send_all_steps(scene, first=MASKED)
    status = in_session(scene, 2)
    assert status.counts is not None
    assert status.terms is not None
    assert status.counts.groups == {"x0": 4, "x1": 2, "x2": 2, "reject": 0}
    assert groups_of(status.terms.segments) == set()


def test_counts_in_clear_are_checked(coordinator: Served, bank: dict[str, Any]) -> None:
    scene = counting(coordinator, [ALL, ALL, FEW], masking="none")
    scene.begin()
    liar = scene.clients[0]
    assert liar.input is not None
    honest = liar.message(MASKED)
    for value in (2, 3, -1):
        liar.input[2] = value * largest_encoded(16)
        liar.sent.clear()
        refused = liar.put(MASKED)
        assert (refused.status_code, slug(refused)) == (422, "masked-vector")
    assert liar.put(MASKED, honest).status_code == 201
