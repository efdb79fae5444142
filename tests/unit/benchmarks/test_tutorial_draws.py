"""The draws of the first tutorial: studies of its messages and its plan."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tutorial_draws import TESTS, silos_of_tutorial, write_study
from studies.partition import draw_examples
from studies.study import read_study
from tests.scene.agent_processes import MODELS


def test_a_draw_divides_the_messages_of_the_tutorial(tmp_path: Path) -> None:
    messages = silos_of_tutorial()
    assert {name: len(rows) for name, rows in messages.items()} == {"north": 18, "harbour": 18}
    study = read_study(write_study(3, Path(MODELS["S"]), tmp_path))
    assert (study.seeds, study.plan["rounds"]) == ([3], {"total": 3})
    for silo in draw_examples(study, 3).values():
        assert (len(silo.train), len(silo.test)) == (18 - TESTS, TESTS)
        assert not {example.key for example in silo.train} & {example.key for example in silo.test}
