"""A pool whose listener fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from studies.results import Cell
from studies.worker_pool import CellQueue, Pool
from studies.worker_protocol import Progress, Setup
from tests.unit.studies.comparisons import planned_comparison


class Closed:
    """A listener whose output is a closed pipe, as after `tessera compare ... | head`; rich exits."""

    def started(self, cell: Cell) -> None:
        raise SystemExit(1)

    def moved(self, cell: Cell, progress: Progress) -> None: ...

    def ended(self, cell: Cell, failure: str | None) -> None: ...


def test_an_error_of_the_listener_ends_the_run(tmp_path: Path) -> None:
    comparison = planned_comparison(tmp_path)
    pool = Pool(Setup(study=comparison.study, out=comparison.out), Closed())
    with pytest.raises(SystemExit):
        pool.run(comparison.cells, workers=2)


def test_a_failed_queue_releases_waiting_threads(tmp_path: Path) -> None:
    cell = planned_comparison(tmp_path).cells[0]
    waiting, cells_taken = CellQueue([cell], lambda cell: ()), list[Cell | None]()
    assert waiting.next() == cell
    thread = threading.Thread(target=lambda: cells_taken.append(waiting.next()), daemon=True)
    thread.start()
    waiting.fail(SystemExit(1))
    thread.join(timeout=10)
    assert cells_taken == [None]
