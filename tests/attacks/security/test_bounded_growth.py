"""Bounds of the data that a client can store: scores, acceptance tests, events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select

from coordinator.aggregation import retention
from coordinator.alignment import transfer_test
from coordinator.db.engine import Database
from coordinator.db.tables.federations import EventRow, FederationRow
from coordinator.federations import store
from coordinator.rounds import scores
from coordinator.storage import event_log
from tests.scene.alignment import LARGE, acceptance_figures, acceptance_path, with_packs
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.plans import federation_plan
from tests.scene.rounds import deliver, join, one_round, plan, running, scored, send_scores, values, wait_for
from tests.scene.waiting import wait_until

Rows = Callable[[str, str], list[tuple[Any, ...]]]


def score(silo: Silo, number: int, exact_match: float) -> tuple[int, str]:
    return send_scores(silo, number, scored({"loss": 1.0, "exact_match": exact_match}))


def count_events(rows: Rows, served: Served, federation_id: str) -> int:
    """Count a federation's events after pending ones are written."""
    time.sleep(1.2)
    ((count,),) = rows(
        served.database_url, f"SELECT count(*) FROM events WHERE federation_id = '{federation_id}'"
    )
    return int(count)


@pytest.mark.slow
def test_a_finished_federation_takes_each_clients_scores_once(coordinator: Served, rows: Rows) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    before = count_events(rows, coordinator, federation_id)
    assert score(silos[0], 1, 0.5) == (204, "")
    for number in range(20):
        assert score(silos[0], 1, number / 100) == (409, "round-closed")
    assert score(silos[0], 1, 0.5) == (204, ""), "the same again is no change"
    assert count_events(rows, coordinator, federation_id) == before + 1


@pytest.mark.slow
def test_scores_of_a_round_have_a_replacement_limit(coordinator: Served, rows: Rows) -> None:
    federation_id, (silo, second) = running(coordinator)
    for client in (silo, second):
        join(client, 1)
    answers = [score(silo, 1, number / 100) for number in range(scores.MOST_CHANGES + 3)]
    assert answers == [(204, "")] * (scores.MOST_CHANGES + 1) + [(409, "round-closed")] * 2
    assert score(second, 1, 0.5) == (204, ""), "another client's are its own"
    before = count_events(rows, coordinator, federation_id)
    for _ in range(20):
        assert score(second, 1, 0.5) == (204, "")
    assert count_events(rows, coordinator, federation_id) == before, "nothing is different"


def test_rounds_that_ended_long_ago_take_no_scores(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 9}))
    for number in (1, 2, 3):
        one_round(coordinator, federation_id, silos, number, [1.0, 3.0])
    assert score(silos[0], 1, 0.5) == (409, "round-closed")
    assert [score(silos[0], number, 0.5) for number in (2, 3)] == [(204, "")] * 2


@pytest.mark.slow
def test_acceptance_tests_are_replaced_once_a_minute(
    coordinator: Served, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation_id, pack = with_packs(coordinator)
    silo = coordinator.enrol(federation_id, "a", base_model=LARGE)
    before = count_events(rows, coordinator, federation_id)
    assert silo.http.put(acceptance_path(federation_id), json=acceptance_figures(pack)).status_code == 201
    refused = silo.http.put(acceptance_path(federation_id), json=acceptance_figures(pack, steps=51))
    assert (refused.status_code, slug(refused)) == (429, "rate-limited")
    assert 0 < int(refused.headers["Retry-After"]) <= transfer_test.REPLACED_AFTER.total_seconds() + 6
    assert count_events(rows, coordinator, federation_id) == before + 1
    monkeypatch.setattr(transfer_test, "REPLACED_AFTER", -transfer_test.REPLACED_AFTER)
    began = time.monotonic()
    for steps in range(60, 80):
        assert (
            silo.http.put(
                acceptance_path(federation_id), json=acceptance_figures(pack, steps=steps)
            ).status_code
            == 201
        )
    most = 2 + (time.monotonic() - began) / 0.5
    assert count_events(rows, coordinator, federation_id) - before - 1 <= most
    before = count_events(rows, coordinator, federation_id)
    assert (
        silo.http.put(acceptance_path(federation_id), json=acceptance_figures(pack, steps=79)).status_code
        == 200
    )
    assert count_events(rows, coordinator, federation_id) == before


def test_a_full_disk_refuses_scores_and_acceptance_tests(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), storage_reserve_mib=2**40)
    federation_id, (silo, _) = running(served)
    join(silo, 1)
    assert score(silo, 1, 0.5) == (507, "storage-full")
    full = silo.http.put(
        acceptance_path(federation_id, "tiny-s-3f0c9a1b2c3d"), json=acceptance_figures("sha256:" + "0" * 64)
    )
    assert (full.status_code, slug(full)) == (507, "storage-full")


def numbers(database: Database, federation_id: str) -> list[int]:
    with database.read() as session:
        query = (
            select(EventRow.number).where(EventRow.federation_id == federation_id).order_by(EventRow.number)
        )
        return list(session.scalars(query))


def test_a_federation_keeps_its_newest_events_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_EVENTS", 10)
    with database.write() as session:
        plan = federation_plan()
        crowded, quiet = (store.create(session, plan).id for _ in range(2))
        for _ in range(25):
            event_log.append(session, crowded, "round", {"round": 1})
        event_log.append(session, quiet, "round", {"round": 1})
    assert [event_log.delete_old(database, most=10) for _ in range(3)] == [10, 5, 0]
    assert (numbers(database, crowded), numbers(database, quiet)) == ([*range(16, 26)], [1])
    with database.write() as session:
        assert [event.number for event in event_log.since(session, crowded, 3)] == [*range(16, 26)]
        assert event_log.append(session, crowded, "round", {"round": 1}) == 26


@pytest.mark.slow
def test_pruning_a_round_deletes_its_events(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 9}))
    for number in (1, 2, 3):
        one_round(coordinator, federation_id, silos, number, [1.0, 3.0])
    wait_for(coordinator, federation_id, 4, "open")
    alignment = {"base_model": "b", "digest": "d"}

    def pruned() -> list[dict[str, Any]] | None:
        """Return the events that pruning leaves, or None where one of an old round was stored only now."""
        with coordinator.database.write() as session:  # the newest event stays: no old round's
            event_log.append(session, federation_id, "alignment", alignment)
        while retention.prune_rounds(coordinator.database, 2):
            pass
        with coordinator.database.read() as session:
            left = session.scalars(select(EventRow.data).where(EventRow.federation_id == federation_id)).all()
        return list(left) if {data["round"] for data in left if "round" in data} == {2, 3, 4} else None

    left = wait_until(pruned, event="pruning round 1's events")
    with coordinator.database.read() as session:
        newest = session.scalar(select(FederationRow.events).where(FederationRow.id == federation_id))
        last = session.scalar(
            select(func.max(EventRow.number)).where(EventRow.federation_id == federation_id)
        )
    assert alignment in left
    assert newest == last
    shown = coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1").json()
    assert shown["counts"]["arrived"] == 2, "the round is shown as before"
    deliver(silos[0], 4, values(1.0))
