"""Progress of a comparison: the runs to expect, the time left, and warnings once."""

from __future__ import annotations

import logging
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_agent.rounds.examine import DATA_REMARK, few_validation
from studies import progress
from studies.progress import ProgressDisplay
from studies.results import store_result
from studies.worker import _Activity
from studies.worker_protocol import Progress
from tests.scene.studies import result
from tests.unit.studies.comparisons import planned_comparison


def test_a_warning_of_the_data_is_printed_once(tmp_path: Path) -> None:
    printed = StringIO()
    with ProgressDisplay(Console(file=printed, width=200), planned_comparison(tmp_path, validation=2), 2):
        pass
    assert printed.getvalue().count("2 validation examples are too few") == 1
    assert few_validation(16) is None
    activities: list[str] = []
    log = logging.getLogger("client_agent.rounds.examine")
    handler = _Activity(lambda record: activities.append(record.getMessage()))
    log.addHandler(handler)
    try:
        log.warning("said of the data", extra={DATA_REMARK: True})
        log.warning("round 1")
    finally:
        log.removeHandler(handler)
    assert activities == ["round 1"]


def test_time_left_follows_from_the_rounds_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = planned_comparison(tmp_path, validation=0)
    first, second = comparison.cells[:2]
    finished = result(first.method, first.seed, {"aster": (1, 0.5, 0.4), "birch": (1, 0.3, 0.2)})
    store_result(
        first, comparison.out, finished.model_copy(update={"digest": first.digest, "wall_seconds": 400})
    )
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    printed = StringIO()
    with ProgressDisplay(Console(file=printed, width=200), comparison, 2) as display:
        assert "3 runs, 6 rounds in all, on 2 workers: about 10 minutes" in printed.getvalue()
        display.started(second)
        display.print_time_left()
        now[0] = 180.0
        display.moved(second, Progress(rounds=1, total=2, doing="aster"))
        display.print_time_left()
        display.ended(second, None)
        now[0] = 240.0
        display.print_time_left()
    lines = [line for line in printed.getvalue().splitlines() if line.startswith("run ")]
    assert lines == [
        "run 2 of 4: no round has ended yet",
        "run 2 of 4: about 15 minutes left",
        "run 3 of 4: about 8 minutes left",
    ]
