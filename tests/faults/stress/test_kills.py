"""A coordinator killed with SIGKILL, at all marked places and at random: no loss."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.observability.fault_points import PLACES
from tests.faults.stress import kills
from tests.faults.stress.movers import MOVED_BEFORE, moving_everything
from tests.faults.stress.one_hot import Trial
from tests.faults.stress.summed import SummedTrial

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_kills_at_marked_places_lose_no_update(database_url: str, tmp_path: Path) -> None:
    outcome = kills.at_every_place(database_url, tmp_path, Trial(clients=4, rounds=8))
    assert sorted([*outcome.died_at, *kills.OF_SUMS, *kills.OF_MOVES, *kills.OF_OWNERS]) == sorted(PLACES)


def test_kills_at_places_of_a_sum_are_harmless(database_url: str, tmp_path: Path) -> None:
    outcome = kills.at_every_place_of_a_sum(database_url, tmp_path, SummedTrial())
    assert outcome.died_at == kills.OF_SUMS


def test_kills_at_random_moments_lose_no_update(database_url: str, tmp_path: Path) -> None:
    outcome = kills.at_random(database_url, tmp_path, Trial(clients=8, rounds=12), seed=7, every=1.5)
    assert len(outcome.died_at) >= 3


def test_kills_during_moves_to_a_store_are_harmless(
    database_url: str, tmp_path: Path, rows: Callable[[str, str], list[tuple[Any, ...]]]
) -> None:
    pytest.importorskip("obstore")
    folder = tmp_path / "store"
    store = folder.as_uri()
    trial, settings = Trial(clients=4, rounds=12), {"TESSERA_PAYLOAD_STORE": store}
    with moving_everything(database_url, store) as movers:
        outcome = kills.at_random(database_url, tmp_path, trial, seed=8, every=2.0, **settings)
    assert outcome.died_at
    assert not movers.failures
    assert movers.swept >= movers.died_at.count("payload-put")
    assert set(movers.died_at) == set(kills.OF_MOVES)
    assert movers.moved >= MOVED_BEFORE * len(movers.died_at)
    places = {place for (place,) in rows(database_url, "SELECT place FROM payloads WHERE place IS NOT NULL")}
    assert places == {file.as_uri() for file in folder.glob("*/*-*")}
    assert places


def test_a_killed_collection_leaves_whole_payloads(
    database_url: str, rows: Callable[[str, str], list[tuple[Any, ...]]]
) -> None:
    kills.leave_over(database_url)
    assert kills.while_collecting(database_url) == -signal.SIGKILL
    assert rows(database_url, "SELECT count(*) FROM payloads") == [(3,)]
    assert rows(database_url, "SELECT count(DISTINCT payload_id) FROM payload_chunks") == [(3,)]
