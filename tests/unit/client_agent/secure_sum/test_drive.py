"""Members driven session by session: drop-outs, new sessions, and coordinators that lie."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import AnswerUnreadable, CoordinatorRefused, CoordinatorUnreachable
from schemas.messages.secure_sum import SumOutcome, SumStatus
from tests.scene.secure_sums import identity, terms_of
from tests.unit.client_agent.secure_sum.memory_server import (
    DrivenMember,
    GoneAway,
    MemoryCalls,
    change_answers,
    expected_sum,
    members_of,
    reason_for_leaving,
    run_all,
    run_until_all_left,
)


def hold_step(members: list[DrivenMember], place: int, step: int) -> threading.Event:
    """Hold the other members at a step until the returned event is set, when member `place` has come to it.

    Otherwise the sum may end before that member has seen that its step is due.
    """
    server, has_come = members[place].calls.server, threading.Event()
    accept = server.put

    def accept_once_it_has_come(position: int, session: int, number: int, body: bytes) -> None:
        if number == step and position != place:
            assert has_come.wait(60)
        accept(position, session, number, body)

    server.put = accept_once_it_has_come  # type: ignore[method-assign]
    return has_come


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4])
def test_absent_member_drops_out_of_the_sum(step: int, tmp_path: Path) -> None:
    members = members_of(tmp_path, 5)
    server, gone = members[0].calls.server, members[2]
    gone.calls.stop_before, server.missing = step, {2: step}
    put, has_come = gone.calls.put, hold_step(members, 2, step)

    def put_or_go(session: int, number: int, body: bytes) -> None:
        if number == step:
            has_come.set()
        put(session, number, body)

    gone.calls.put = put_or_go  # type: ignore[method-assign]
    errors = run_all(members)
    assert {place: type(error) for place, error in errors.items()} == {2: GoneAway}
    counted = [n for n in range(5) if n != 2 or step > 2]
    assert server.total is not None
    assert np.array_equal(server.total, expected_sum([members[n] for n in counted]))
    assert members[0].reports[-1].members is not None


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_late_member_leaves_session_and_gets_the_outcome(step: int, tmp_path: Path) -> None:
    members = members_of(tmp_path, 5)
    server, late = members[0].calls.server, members[2]
    server.missing = {2: step}
    put, patience = late.calls.put, threading.Event()
    has_come = hold_step(members, 2, step)

    def put_late(session: int, number: int, body: bytes) -> None:
        if number == step:
            has_come.set()
            while (session, step) not in server.closed:
                patience.wait(0.001)
        put(session, number, body)

    late.calls.put = put_late  # type: ignore[method-assign]
    assert not run_all(members)
    counted = [member for member in members if member is not late or step > 2]
    assert server.total is not None
    assert np.array_equal(server.total, expected_sum(counted))
    assert any("was over" in (report.reason or "") for report in late.reports)


def test_next_session_has_new_keys_and_same_input(tmp_path: Path) -> None:
    members = members_of(tmp_path, 5)
    server = members[0].calls.server
    server.missing = {4: 3}
    for member in members:
        member.calls.stop_before = 3
    assert len(run_all(members)) == 5
    first = {n: (server.bodies[1, n, 0], server.bodies[1, n, 2]) for n in range(5)}
    server.open(terms_of(5, session=2))
    for member in members:
        member.calls.stop_before = 9
    server.missing = {}
    assert not run_all(members)
    for n in range(5):
        assert first[n][0] != server.bodies[2, n, 0]
        assert first[n][1] != server.bodies[2, n, 2]
    assert server.total is not None
    assert np.array_equal(server.total, expected_sum(members))
    assert not list(tmp_path.rglob("put-*"))


def test_member_that_unmasked_joins_no_second_sum(tmp_path: Path) -> None:
    """Else the coordinator says that too few answered, repeats the sum without one member, and subtracts."""
    members = members_of(tmp_path, 5)
    server = members[0].calls.server
    server.missing = {0: 4}
    members[0].calls.stop_before = 4
    assert set(run_all(members)) <= {0}  # the sum may end before that member has seen that step 4 is due
    server.total, server.outcome = None, None
    server.open(terms_of(5, session=2))
    server.missing = {n: 0 for n in range(1, 5)}
    members[0].calls.stop_before = 1
    run_until_all_left(members[1:])
    assert not [entry for entry in server.log if entry[0] == 2]
    assert all("unmasks one only" in (member.reports[-1].reason or "") for member in members[1:])


def test_unreadable_answer_is_requested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_answers(monkeypatch, 0, lambda calls, body: b"<html>gateway</html>")
    members = members_of(tmp_path, 3)
    errors = run_all(members)
    assert all(isinstance(error, AnswerUnreadable) for error in errors.values())
    monkeypatch.undo()
    assert not run_all(members)
    total = members[0].calls.server.total
    assert total is not None
    assert np.array_equal(total, expected_sum(members))


def test_member_that_missed_a_step_joins_next_session(tmp_path: Path) -> None:
    members = members_of(tmp_path, 5)
    server = members[0].calls.server
    server.missing = {4: 1}
    members[4].calls.stop_before = 1
    for member in members[:4]:
        member.calls.stop_before = 3
    assert len(run_all(members)) == 5
    members[4].calls.stop_before = 9
    assert "did not answer step" in reason_for_leaving(members[4])
    server.open(terms_of(5, session=2))
    server.missing = {}
    for member in members:
        member.calls.stop_before = 9
    assert not run_all(members)
    assert server.outcome is not None
    assert len(server.outcome.counted or []) == 5


def test_unreachable_coordinator_is_an_error_and_sum_resumes(tmp_path: Path) -> None:
    members = members_of(tmp_path, 3)
    put, broken = members[0].calls.put, {2}

    def unreliable(session: int, step: int, body: bytes) -> None:
        if step in broken:
            broken.clear()
            raise CoordinatorUnreachable("http://x", "no route", 1.0)
        put(session, step, body)

    members[0].calls.put = unreliable  # type: ignore[method-assign]
    threads = [threading.Thread(target=member.run, daemon=True) for member in members[1:]]
    for thread in threads:
        thread.start()
    with pytest.raises(CoordinatorUnreachable):
        members[0].run()
    assert members[0].run().state == "summed"
    for thread in threads:
        thread.join(timeout=30)
    total = members[0].calls.server.total
    assert total is not None
    assert np.array_equal(total, expected_sum(members))


def test_refused_message_ends_a_members_session(tmp_path: Path) -> None:
    member = members_of(tmp_path, 3)[0]

    def refuse(session: int, step: int, body: bytes) -> None:
        raise CoordinatorRefused(422, "weak-public-key", "the key is weak", "keys")

    member.calls.put = refuse  # type: ignore[method-assign]
    assert "the coordinator refused step keys" in reason_for_leaving(member)
    assert member.journal.open(1).ended


def test_terms_without_this_client_are_not_accepted(tmp_path: Path) -> None:
    server_members = members_of(tmp_path, 5)
    stranger = DrivenMember(
        MemoryCalls(server_members[0].calls.server, 7), tmp_path / "stranger", server_members[0].values
    )
    assert "not among its members" in reason_for_leaving(stranger)
    assert not (stranger.folder / "secure").exists()


def test_client_without_terms_waits_for_the_outcome(tmp_path: Path) -> None:
    member = members_of(tmp_path, 5)[0]
    server = member.calls.server
    honest, polls = server.status, []

    def status() -> SumStatus:
        polls.append(1)
        if len(polls) > 2:
            server.outcome = SumOutcome(state="abandoned", counted=None, reason="secure-sum-failed")
        return honest().model_copy(update={"terms": None, "outcome": server.outcome})

    server.status = status  # type: ignore[method-assign]
    assert member.run().reason == "secure-sum-failed"
    assert not server.log


def test_member_with_a_replaced_key_leaves_the_session(tmp_path: Path) -> None:
    member = members_of(tmp_path, 5)[0]
    member.identity = identity(99)
    assert "an earlier key" in reason_for_leaving(member)
    assert not member.calls.server.log
