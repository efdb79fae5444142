"""The benchmark of a bank's life reads its settings from the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bank_life import SCENE, Life
from studies.study import read_study


def test_bank_without_sums_is_refused(tmp_path: Path) -> None:
    study = read_study(SCENE.with_name("experts.toml"))
    with pytest.raises(SystemExit, match="a bank is played with"):
        Life.of(study, 0, tmp_path, rounds=1, merges=True)
