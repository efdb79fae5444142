"""Silos that share a pool get different examples of it, drawn by the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from client_agent.simulation.draws import drawn
from tests.client_agent.simulation.studies import silo_table, study

SILOS = (
    silo_table("aster", examples=4),
    silo_table("birch", examples=7),
    silo_table("cedar", task="flip", examples=3),
)


def test_silos_of_one_pool_share_no_example(tmp_path: Path) -> None:
    data = drawn(study(tmp_path, *SILOS), 0)
    keys = {name: [e.key for e in mine.train] for name, mine in data.items()}
    assert {name: len(mine) for name, mine in keys.items()} == {"aster": 4, "birch": 7, "cedar": 3}
    assert len({key for mine in keys.values() for key in mine}) == 14
    assert all(e.prompt.startswith("FLIP") for e in data["cedar"].train)


def test_a_seed_draws_the_same_again_and_another_seed_something_else(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS)
    assert drawn(read, 3) == drawn(read, 3)
    assert set(drawn(read, 3)["birch"].train) != set(drawn(read, 4)["birch"].train)


def test_more_examples_only_add_to_fewer(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS).with_examples(4)
    more = drawn(read.with_examples(8), 0)
    for name, mine in drawn(read, 0).items():
        assert more[name].train[:4] == mine.train


def test_test_items_are_as_many_as_asked_for_and_never_trained_on(tmp_path: Path) -> None:
    data = drawn(study(tmp_path, *SILOS), 0)
    trained = {e.key for mine in data.values() for e in mine.train}
    for mine in data.values():
        assert len(mine.test) == 8
        assert not trained & {e.key for e in mine.test}
    assert data["aster"].test != data["birch"].test


def test_a_pool_that_is_too_small_is_named_with_who_asks(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS).with_examples(11)
    with pytest.raises(StudyUnusable, match="has 20 different examples, and aster, birch ask for 22"):
        drawn(read, 0)
