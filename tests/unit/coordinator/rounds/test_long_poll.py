"""Long polls for the next round: woken by changes, ended in time, without a thread or connection each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from coordinator.db.federation_lock import lock_federation
from coordinator.db.tables.federations import ClientRow
from coordinator.rounds import queries, transitions
from coordinator.rounds.long_poll import MAX_WAIT_SECONDS, seconds_of
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import deliver, plan, running, values

Serve = Callable[..., Served]
_MORE_THAN_THREADS = 45
"""A service has forty threads for the requests that have none of their own."""

ALONE = plan(rounds={"min_clients": 1, "total": 2})


@contextmanager
def waiting(silo: Silo, seconds: int) -> Iterator[Future[httpx.Response]]:
    """Poll for the current round in a thread, and check that the poll waits."""
    path = f"/v1/federations/{silo.federation_id}/rounds/current"
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(silo.http.get, path, headers={"Prefer": f"wait={seconds}"})
        time.sleep(0.3)
        assert not poll.done(), poll.result().text
        yield poll


def result_of(poll: Future[httpx.Response]) -> tuple[httpx.Response, float]:
    """Return the answer, and the seconds until it came."""
    began = time.monotonic()
    return poll.result(timeout=20), time.monotonic() - began


def test_the_start_of_a_federation_wakes_long_polls(coordinator: Served) -> None:
    federation_id = coordinator.federation(**ALONE)
    silo = coordinator.enrol(federation_id, "a")
    with waiting(silo, 20) as poll:
        coordinator.start_federation(federation_id)
        answer, seconds = result_of(poll)
    assert (answer.status_code, answer.json()["round"]) == (200, 1)
    assert seconds < 5


def test_polls_see_a_round_opened_during_their_query(
    coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation_id = coordinator.federation(**ALONE)
    silo = coordinator.enrol(federation_id, "a")
    fetch_status = queries.fetch_status

    def fetch_just_before(*arguments: Any) -> queries.ClientRoundStatus:
        status = fetch_status(*arguments)
        monkeypatch.setattr(queries, "fetch_status", fetch_status)
        coordinator.start_federation(federation_id)
        return status

    monkeypatch.setattr(queries, "fetch_status", fetch_just_before)
    began = time.monotonic()
    path = f"/v1/federations/{federation_id}/rounds/current"
    answer = silo.http.get(path, headers={"Prefer": "wait=20"})
    assert (answer.status_code, answer.json()["round"]) == (200, 1)
    assert time.monotonic() - began < 10


def test_long_polls_return_next_rounds_and_the_end(coordinator: Served) -> None:
    _, (silo, peer) = running(coordinator, **plan(rounds={"total": 2}))
    for number in (1, 2):
        deliver(silo, number, values(1.0))
        with waiting(silo, 20) as poll:
            deliver(peer, number, values(2.0))
            answer, seconds = result_of(poll)
        assert (answer.json()["state"], answer.json()["round"]) == (
            ("open", 2) if number == 1 else ("finished", 3)
        )
        assert seconds < 5


def test_an_abandoned_round_wakes_long_polls(coordinator: Served) -> None:
    _, (silo, peer) = running(coordinator, **plan(rounds={"collect_seconds": 1, "quorum": 2}))
    assert peer.http.post(f"/v1/federations/{peer.federation_id}/rounds/1/join").status_code == 200
    deliver(silo, 1, values(1.0))
    with waiting(silo, 20) as poll:
        answer, _ = result_of(poll)
    assert (answer.status_code, answer.json()["round"]) == (200, 2)


def test_finishing_an_unstarted_federation_wakes_long_polls(coordinator: Served) -> None:
    federation_id = coordinator.federation(**ALONE)
    silo = coordinator.enrol(federation_id, "a")
    with waiting(silo, 20) as poll:
        coordinator.admin.post(f"/v1/federations/{federation_id}/finish")
        answer, seconds = result_of(poll)
    assert answer.json()["state"] == "finished"
    assert seconds < 5


def test_long_polls_time_out_with_retry_after_0(coordinator: Served) -> None:
    silo = coordinator.enrol(coordinator.federation(**ALONE), "a")
    began = time.monotonic()
    with waiting(silo, 1) as poll:
        answer, _ = result_of(poll)
    assert 0.9 < time.monotonic() - began < 5
    assert (answer.status_code, answer.headers["retry-after"]) == (204, "0")


def test_a_request_without_wait_is_answered_at_once(coordinator: Served) -> None:
    silo = coordinator.enrol(coordinator.federation(**ALONE), "a")
    path = f"/v1/federations/{silo.federation_id}/rounds/current"
    for prefer in ("wait=0", "respond-async", "wait=soon"):
        began = time.monotonic()
        answer = silo.http.get(path, headers={"Prefer": prefer})
        assert (answer.status_code, time.monotonic() - began < 5) == (204, True)
        assert int(answer.headers["retry-after"]) >= 1


def test_revoking_a_client_ends_its_long_poll(coordinator: Served) -> None:
    federation_id = coordinator.federation(**ALONE)
    silo = coordinator.enrol(federation_id, "a")
    with waiting(silo, 20) as poll:
        coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}")
        answer, seconds = result_of(poll)
    assert (answer.status_code, slug(answer)) == (401, "key-revoked")
    assert seconds < 5


def test_a_second_long_poll_ends_the_clients_first(coordinator: Served) -> None:
    federation_id = coordinator.federation(**ALONE)
    silo = coordinator.enrol(federation_id, "a")
    again = Silo(silo.client_id, federation_id, silo.key, coordinator.signing(silo.key))
    with waiting(silo, 20) as earlier, waiting(again, 20) as later:
        answer, seconds = result_of(earlier)
        assert answer.status_code == 204
        assert seconds < 5
        assert not later.done()
        coordinator.start_federation(federation_id)
        assert result_of(later)[0].status_code == 200


@contextmanager
def held_write_lock(served: Served) -> Iterator[None]:
    """Hold SQLite's write lock, while no client's last contact is known, so that all have to be written."""
    with served.database.write() as session:
        session.execute(update(ClientRow).values(last_seen_at=None))
    with served.database.write() as session:
        session.connection()
        yield


def test_polls_do_not_wait_for_the_write_lock(serve: Serve, fresh_database: Callable[[str], str]) -> None:
    served = serve(fresh_database("sqlite"))
    silo = served.enrol(served.federation(**ALONE), "a")
    with held_write_lock(served):
        began = time.monotonic()
        answer = silo.http.get(f"/v1/federations/{silo.federation_id}/rounds/current")
        assert time.monotonic() - began < 5  # a write gives up after ten seconds
    assert answer.status_code == 204


@pytest.mark.slow
def test_polls_do_not_wait_for_threads_that_write(serve: Serve, fresh_database: Callable[[str], str]) -> None:
    served = serve(fresh_database("sqlite"))
    federation_id = served.federation(**plan())
    silo, peer = (served.enrol(federation_id, name) for name in "ab")
    path = f"/v1/federations/{federation_id}/rounds"
    with ThreadPoolExecutor(_MORE_THAN_THREADS) as pool:
        with held_write_lock(served):
            joins = [pool.submit(peer.http.post, f"{path}/1/join") for _ in range(_MORE_THAN_THREADS)]
            time.sleep(0.5)
            assert not any(join.done() for join in joins)
            began = time.monotonic()
            answer = silo.http.get(f"{path}/current")
            assert time.monotonic() - began < 5
        assert {join.result().status_code for join in joins} == {404}
    assert answer.status_code == 204


@pytest.mark.slow
def test_invalid_tokens_take_no_threads_of_polls(serve: Serve, fresh_database: Callable[[str], str]) -> None:
    served = serve(fresh_database("sqlite"))
    silo = served.enrol(served.federation(**plan()), "a")
    path = f"/v1/federations/{silo.federation_id}/rounds/current"
    invalid = {"Authorization": "Bearer tsr_cl_invalid"}
    with ThreadPoolExecutor(20) as pool:
        with held_write_lock(served):
            # Each is counted by its address, in a transaction.
            refusals = [pool.submit(httpx.get, f"{served.url}{path}", headers=invalid) for _ in range(20)]
            time.sleep(0.5)
            began = time.monotonic()
            assert silo.http.get(path).status_code == 204
            assert time.monotonic() - began < 5
        assert {refusal.result().status_code for refusal in refusals} == {401}


@pytest.mark.slow
def test_long_polls_hold_no_thread_or_connection(serve: Serve, fresh_database: Callable[[str], str]) -> None:
    served = serve(fresh_database("sqlite"))
    federation_id = served.federation(**plan(rounds={"min_clients": 60}))
    silos = [
        served.enrol(federation_id, f"silo-{i}") for i in range(60)
    ]  # more than there are threads to serve them
    before = threading.active_count()
    path = f"/v1/federations/{federation_id}/rounds/current"
    with ThreadPoolExecutor(60) as pool:
        polls = [pool.submit(silo.http.get, path, headers={"Prefer": "wait=20"}) for silo in silos]
        time.sleep(1.0)
        assert not any(poll.done() for poll in polls)
        began = time.monotonic()
        assert served.admin.get(f"/v1/federations/{federation_id}").json()["clients"]["enrolled"] == 60
        assert time.monotonic() - began < 10
        assert threading.active_count() <= before + 60 + 40  # theirs here, and the service's usual ones
        served.start_federation(federation_id)
        assert [poll.result(timeout=20).status_code for poll in polls] == [200] * 60


def test_changes_of_other_processes_wake_long_polls(
    backend: str, serve: Serve, fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database(backend), tick_seconds=3600.0)
    federation_id = served.federation(**ALONE)
    silo = served.enrol(federation_id, "a")
    with waiting(silo, 20) as poll:
        with served.database.write() as session:
            transitions.start(session, lock_federation(session, federation_id))
        answer, seconds = result_of(poll)
    assert (answer.status_code, answer.json()["round"]) == (200, 1)
    assert seconds < 5


def test_a_round_published_by_another_replica_wakes_polls(
    serve: Serve, fresh_postgres: Callable[[], str]
) -> None:
    url = fresh_postgres()
    first, second = (serve(url, tick_seconds=3600.0) for _ in range(2))
    federation_id, (silo, peer) = running(first)
    deliver(silo, 1, values(1.0))
    moved = Silo(peer.client_id, federation_id, peer.key, second.signing(peer.key))
    with waiting(silo, 20) as poll:
        deliver(moved, 1, values(2.0))
        answer, seconds = result_of(poll)
    assert (answer.status_code, answer.json()["round"]) == (200, 2)
    assert seconds < 5


def test_a_stopping_service_ends_its_long_polls(serve: Serve, fresh_database: Callable[[str], str]) -> None:
    served = serve(fresh_database("sqlite"), retry_seconds=7.0)
    silo = served.enrol(served.federation(**ALONE), "a")
    with waiting(silo, 25) as poll:
        served._server.handle_exit(15, None)
        answer, seconds = result_of(poll)
    assert answer.status_code == 204
    assert 3 <= int(answer.headers["retry-after"]) <= 11  # spread: all of them come back
    assert seconds < 5


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0),
        ("wait=5", 5),
        ('respond-async, Wait = "7" ; x', 7),
        ("wait=999999", MAX_WAIT_SECONDS),
        ("wait=-5", 0),
        ("wait=5s", 0),
        ("await=5", 0),
    ],
)
def test_the_wait_preference_is_parsed_by_rfc_7240(prefer: Any, seconds: int) -> None:
    assert seconds_of(prefer) == seconds
