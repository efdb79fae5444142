"""Sessions over HTTP, with members that run the agent's protocol: complete, with drop-outs, aborted."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from sqlalchemy import delete, select

from coordinator.db.engine import Database
from coordinator.db.tables.identity import AuditRow
from coordinator.db.tables.secure_sum import SumMemberRow, SumMessageRow, SumSessionRow
from coordinator.federations.store import revoke
from coordinator.secure_sum import sessions
from schemas.messages.secure_sum import SumStatus
from tests.scene.coordinator import Served
from tests.scene.sum_members import CONFIRM, KEYS, MASKED, SHARES, UNMASK, SummedRound, summing
from tests.unit.coordinator.secure_sum.stored import KEY, stored_session

STEPS = (KEYS, SHARES, MASKED, CONFIRM, UNMASK)
PHASES = ("keys", "shares", "masked", "confirm", "unmask")


def send_all_steps(scene: SummedRound, stops: dict[int, int] | None = None, *, first: int = KEYS) -> None:
    """Send all steps for all clients; a client stops at the step of its position in `stops`."""
    for step in STEPS[first:]:
        stopped = [position for position, at in (stops or {}).items() if at <= step]
        scene.step(step, stop=stopped)
        if stopped and step < UNMASK:
            going = next(client for client in scene.clients if client.position not in stopped)
            going.answer(step)  # the phase closes at its deadline


def test_the_total_of_a_complete_session_is_exact(coordinator: Served) -> None:
    scene = summing(coordinator)
    scene.begin()
    send_all_steps(scene)
    assert np.array_equal(scene.total(), scene.expected())
    view = scene.view()
    (session,) = view["secure_sum"]["sessions"]
    assert session | {"seconds": 0} == {
        "number": 1,
        "kind": "sum",
        "state": "done",
        "members": 5,
        "answered": dict.fromkeys(PHASES, 5),
        "seconds": 0,
        "reason": None,
    }
    assert view["secure_sum"]["counted"] == 5
    assert {client["state"] for client in view["clients"]} == {"arrived"}
    assert all(client["bytes"]["up"] > 0 for client in view["clients"])
    assert not scene.rows(
        "SELECT position FROM sum_messages WHERE session_id IN (SELECT id FROM sum_sessions WHERE {ours})"
    )


def test_sessions_are_shown_in_events_and_audit(coordinator: Served) -> None:
    scene = summing(coordinator)
    scene.begin()
    send_all_steps(scene)
    scene.total()
    query = f"SELECT data FROM events WHERE federation_id = '{scene.federation_id}' AND kind = 'sum'"
    states = [str(data) for (data,) in scene.rows(f"{query} ORDER BY number")]
    assert len(states) == 2
    assert "keys" in states[0]
    assert "done" in states[1]
    with coordinator.database.read() as session:
        entries = list(session.scalars(select(AuditRow.document).order_by(AuditRow.number)))
    of_federation = [entry for entry in entries if entry["subject"] == scene.federation_id]
    shown = [(entry["event"], entry["actor"]) for entry in of_federation if entry["event"].startswith("sum-")]
    assert shown == [("sum-session-opened", "coordinator"), ("sum-session-done", "coordinator")]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_sum_succeeds_without_a_stopped_member(coordinator: Served, step: int) -> None:
    scene = summing(coordinator, phase_seconds=3)
    scene.begin()
    send_all_steps(scene, {2: step})
    counted = range(5) if step > MASKED else (0, 1, 3, 4)
    assert np.array_equal(scene.total(), scene.expected(counted))
    states = {client["state"] for client in scene.view()["clients"]}
    assert states == ({"arrived"} if step > MASKED else {"arrived", "dropped"})


@pytest.mark.slow
@pytest.mark.parametrize("step", [KEYS, MASKED, CONFIRM])
def test_members_that_answered_form_the_next_session(coordinator: Served, step: int) -> None:
    scene = summing(coordinator, phase_seconds=3)
    scene.begin()
    for earlier in STEPS[:step]:
        scene.step(earlier)
    scene.step(step, stop=[1, 3])
    scene.wait_for(lambda view: len(view["secure_sum"]["sessions"]) == 2)
    scene.clients = [client for client in scene.clients if client.position not in (1, 3)]
    scene.begin()
    send_all_steps(scene)
    assert np.array_equal(scene.total(), scene.expected())
    first, second = scene.view()["secure_sum"]["sessions"]
    assert (first["state"], first["reason"]) == ("aborted", f"too few members answered step {PHASES[step]}")
    assert (second["state"], second["members"]) == ("done", 3)


@pytest.mark.slow
def test_slow_members_join_the_next_session_if_needed(coordinator: Served) -> None:
    scene = summing(coordinator, minimum=5, phase_seconds=3)
    scene.begin()
    scene.step(KEYS, stop=[4])
    scene.wait_for(lambda view: len(view["secure_sum"]["sessions"]) == 2)
    scene.begin()
    send_all_steps(scene)
    assert np.array_equal(scene.total(), scene.expected())


@pytest.mark.slow
def test_the_last_failed_attempt_pauses_the_federation(coordinator: Served) -> None:
    scene = summing(coordinator, phase_seconds=3, attempts=2)
    scene.begin()
    view = scene.wait_for(lambda view: view["state"] == "abandoned")
    assert view["reason"] == "secure-sum-failed"
    assert [session["state"] for session in view["secure_sum"]["sessions"]] == ["aborted"] * 2
    status = scene.clients[0].status(seen=0)
    assert status is not None
    assert status.outcome is not None
    assert (status.outcome.state, status.outcome.reason) == ("abandoned", "secure-sum-failed")
    federation = coordinator.admin.get(f"/v1/federations/{scene.federation_id}").json()
    assert federation["state"] == "paused"


@pytest.mark.slow
def test_members_that_unmasked_join_no_further_session(coordinator: Served) -> None:
    scene = summing(coordinator, phase_seconds=3)
    scene.begin()
    send_all_steps(scene, {0: UNMASK, 1: UNMASK, 2: UNMASK})  # two of five answered, four are needed
    spent = scene.rows(
        "SELECT client_id FROM sum_members WHERE spent AND session_id IN"
        " (SELECT id FROM sum_sessions WHERE {ours}) ORDER BY position"
    )
    assert [client_id for (client_id,) in spent] == [client.silo.client_id for client in scene.clients[3:]]
    scene.wait_for(lambda view: len(view["secure_sum"]["sessions"]) == 2)
    status = scene.clients[0].status()
    assert status is not None
    assert status.terms is not None
    assert [member.client for member in status.terms.members] == [
        client.silo.client_id for client in scene.clients[:3]
    ]
    spent_status = scene.clients[3].status()
    assert spent_status is not None
    assert (spent_status.session, spent_status.terms) == (2, None)


@pytest.mark.slow
def test_a_session_does_not_wait_for_revoked_members(coordinator: Served) -> None:
    scene = summing(coordinator, 7)
    scene.begin()
    for step in (KEYS, SHARES):
        scene.step(step)
    gone = scene.clients.pop(3)
    before = gone.message(MASKED)
    removed = coordinator.admin.delete(f"/v1/federations/{scene.federation_id}/clients/{gone.silo.client_id}")
    assert removed.status_code == 204
    assert gone.put(MASKED, before).status_code == 401
    assert gone.get(SHARES).status_code == 401
    send_all_steps(scene, first=MASKED)
    assert np.array_equal(scene.total(), scene.expected())


def test_waiting_requests_end_with_the_phase(coordinator: Served) -> None:
    scene = summing(coordinator)
    scene.begin()
    client = scene.clients[0]
    statuses: list[SumStatus | None] = []
    phase = client.seen
    thread = threading.Thread(target=lambda: statuses.append(client.status(seen=phase, wait=20)))
    thread.start()
    time.sleep(0.3)
    assert not statuses
    scene.step(KEYS)
    began = time.monotonic()
    thread.join(timeout=5)
    assert time.monotonic() - began < 2
    (status,) = statuses
    assert status is not None
    assert (status.step, status.phase > (phase or 0)) == ("shares", True)
    assert client.status(seen=status.phase) is None
    assert client.get(SHARES).status_code == 204


def test_a_round_without_enough_ready_clients_is_abandoned(database: Database) -> None:
    stored = stored_session(database, 3)
    with database.write() as session:  # one is revoked before the first session opens
        for table in (SumMessageRow, SumMemberRow, SumSessionRow):
            session.execute(delete(table))
        revoke(session, stored.federation_id, stored.played.terms.members[0].client)
    assert sessions.drive(database, KEY)
    assert (stored.row().state, stored.row().reason) == ("abandoned", "too-few-members")
    assert stored.federation().state == "running"
    assert not sessions.drive(database, KEY)
