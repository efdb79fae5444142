"""Methods with different states of the same run, which runs once."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.compare import Comparison
from studies.methods import methods_of
from studies.report.tables import remarks
from studies.results import cells_of, store_result
from studies.study import read_study
from tests.scene.studies import result, study, write_study


def test_methods_that_differ_in_states_share_a_run(tmp_path: Path) -> None:
    read = study(tmp_path, more='[method.last]\nlike = "fedit_local"\nadapter.rank = 2\n')
    cells = {c.method: c for c in cells_of(read, methods_of(read, ["fedit_local", "fedit", "last"]), [0])}
    assert {name: cell.states for name, cell in cells.items()} == {
        "fedit_local": "trained",
        "fedit": "served",
        "last": "trained",
    }
    assert cells["fedit"].digest == cells["fedit_local"].digest != cells["last"].digest
    folders = {name: cell.folder(tmp_path).name for name, cell in cells.items()}
    assert set(folders.values()) == {"fedit-seed-0", "last-seed-0"}
    assert cells["fedit"].plan == cells["fedit_local"].plan


def test_a_shared_run_is_run_once(tmp_path: Path) -> None:
    read = read_study(write_study(tmp_path))
    methods = ["fedit", "fedit_local"]
    comparison = Comparison.planned(read, tmp_path / "out", methods, [0])
    assert [cell.label for cell in comparison.missing()] == ["fedit, seed 0"]
    (cell,) = comparison.missing()
    done = result("fedit", 0, {"aster": (1, 0.5), "birch": (1, 0.3)}, final={"aster": 1.2, "birch": 1.2})
    store_result(cell, comparison.out, done.model_copy(update={"digest": cell.digest}))
    assert not comparison.missing()
    results = comparison.results()
    assert [r.method for r in results] == methods
    assert [r.clients[0].states for r in results] == ["served", "trained"]
    report = comparison.reported()
    assert [m.loss.mean.mean for m in report.methods] == pytest.approx([1.2, 0.4])
    assert report.search_cpu_seconds == 0.5
    assert [line.split(":")[0] for line in remarks(report)] == methods
