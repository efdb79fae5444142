"""The code digest covers code that affects results, and no presentation code."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from studies import code_fingerprint
from studies.code_fingerprint import digest_of_code


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the packages to a writable folder."""
    for package in RUN:
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations
        (place,) = spec.submodule_search_locations
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(place, tmp_path / package, ignore=ignored)
    for name in [name for name in sys.modules if name.partition(".")[0] in RUN]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


RUN = ("client_agent", "coordinator", "schemas", "studies")
PACKS = ("client_agent.adapters", "client_agent.alignment", "client_agent.model", "schemas")


@pytest.mark.parametrize(
    ("file", "runs_change", "packs_change"),
    [
        ("client_agent/alignment/fit_packs.py", True, True),
        ("schemas/wire/compress.py", True, True),
        ("studies/partition.py", True, False),
        ("client_agent/rounds/sketch.py", True, False),
        ("coordinator/rounds/routes.py", True, False),
        ("coordinator/strategies/fedmosaic.py", True, False),
        ("studies/report/charts.py", False, False),
        ("studies/command.py", False, False),
    ],
)
def test_the_code_digest_covers_code_that_affects_results(
    shipped: Path, file: str, runs_change: bool, packs_change: bool
) -> None:
    before = digest_of_code(RUN), digest_of_code(PACKS)
    with (shipped / file).open("a") as source:
        source.write("# changed\n")
    after = digest_of_code(RUN), digest_of_code(PACKS)
    assert (before[0] != after[0], before[1] != after[1]) == (runs_change, packs_change)


def test_the_code_digest_covers_the_torch_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of_code(PACKS)
    monkeypatch.setattr(code_fingerprint, "version", lambda library: "0.0.0")
    assert digest_of_code(PACKS) != before


def test_excluded_presentation_code_exists() -> None:
    root = Path(code_fingerprint.__file__).parents[1]
    assert all((root / name).exists() for name in code_fingerprint._PRESENTATION)
