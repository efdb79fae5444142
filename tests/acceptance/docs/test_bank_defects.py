"""The existence of the tests that the lab notes name for defects of banks of experts."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "lab-notes" / "bank-defects.md"
ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_the_lab_notes_name_existing_tests_of_defects() -> None:
    of_reference, of_design = PAGE.read_text().split("## Of the first design")
    assert {int(number) for number in ROW.findall(of_reference)} == set(range(1, 16))
    assert {int(number) for number in ROW.findall(of_design)} == set(range(12, 18))
    for line in PAGE.read_text().splitlines():
        if ROW.match(line):
            named = TEST.findall(line)
            assert named, line
            for file, test in named:
                assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"
