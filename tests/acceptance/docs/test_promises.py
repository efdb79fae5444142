"""The page of promises: counted verdicts, existing evidence, and figures of the linked pages."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.docs.command_line import mistakes, scripts
from tests.acceptance.docs.headings import links, section

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "promises.md"
TEXT = PAGE.read_text("utf-8")
SYSTEMS = {"FedMosaic": "F", "FedMosaic-Adaptive": "A", "CA-PFL": "C", "Fed-VEMoE": "V"}
VERDICTS = ("kept", "corrected", "thin", "refuted", "absent")

_FIGURE = re.compile(r"\d*\.\d+")
_NUMBER = r"[FACV]\d+"


@dataclass(frozen=True, slots=True)
class Promise:
    """A row of the page."""

    number: str
    verdict: str
    figure: str
    more: str

    @property
    def linked(self) -> str:
        """The text of the linked sections."""
        sections = []
        for link in links(self.more):
            path, _, anchor = link.partition("#")
            sections.append(section((PAGE.parent / path).resolve(), anchor))
        return "\n".join(sections)


def _rows(first_cell: str) -> list[list[str]]:
    """Return the stripped cells of all rows of tables whose first cell matches."""
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines())
    return [cells for cells in rows if len(cells) > 1 and re.fullmatch(first_cell, cells[0])]


PROMISES = [
    Promise(number, verdict.strip("*"), figure, more)
    for number, _, verdict, figure, more in (cells for cells in _rows(_NUMBER) if len(cells) == 5)
]


def test_promises_are_numbered_with_one_verdict_each() -> None:
    for letter in SYSTEMS.values():
        numbers = [promise.number for promise in PROMISES if promise.number[0] == letter]
        assert numbers == [f"{letter}{place}" for place in range(1, len(numbers) + 1)]
    assert {promise.verdict for promise in PROMISES} == set(VERDICTS)


def test_counts_of_the_summary_equal_the_rows() -> None:
    counts = Counter((promise.number[0], promise.verdict) for promise in PROMISES)
    shown = {cells[0]: [int(cell) for cell in cells[1:]] for cells in _rows(r"\[.+\]\(#.+\)|all")}
    expected = {
        f"[{name}](#{name.lower()})": [counts[letter, verdict] for verdict in VERDICTS]
        for name, letter in SYSTEMS.items()
    }
    expected["all"] = [sum(column) for column in zip(*expected.values(), strict=True)]
    assert shown == {name: [*row, sum(row)] for name, row in expected.items()}


def test_promises_have_evidence_once() -> None:
    shown = re.findall(rf"^- ({_NUMBER}):", TEXT, re.MULTILINE)
    assert shown == [promise.number for promise in PROMISES]


def test_open_promises_are_listed_with_their_missing_step() -> None:
    open_ones = [promise.number for promise in PROMISES if promise.verdict in ("thin", "absent")]
    listed = [
        number
        for cells in _rows(rf"{_NUMBER}(, {_NUMBER})*")
        if len(cells) == 2
        for number in cells[0].split(", ")
    ]
    assert sorted(listed) == sorted(open_ones)


def test_named_tests_exist() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", TEXT)
    assert len(named) > 40
    assert TEXT.count("::") == len(named)
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text("utf-8")
    ]
    assert not missing


def test_named_studies_have_the_named_methods() -> None:
    studies = ROOT / "examples" / "studies"
    built_in = (ROOT / "studies" / "methods.py").read_text("utf-8")
    named = set(re.findall(r"`(?:[^`]*[/ ])?(\w+\.toml)", TEXT))
    assert len(named) > 10
    assert sorted(file for file in named if not (studies / file).exists()) == []
    for file, methods in re.findall(r"(\w+\.toml)[^`]*--methods ([\w,]+)", TEXT):
        names = built_in + (studies / file).read_text("utf-8")
        assert [method for method in methods.split(",") if not re.search(rf'[".]{method}\b', names)] == []


def test_named_commands_exist() -> None:
    modules = set(re.findall(r"python -m ([\w.]+)", TEXT))
    assert len(modules) > 8
    assert sorted(module for module in modules if find_spec(module) is None) == []
    assert [wrong for script in scripts(PAGE, []) for wrong in mistakes(script)] == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.number)
def test_figures_are_those_of_linked_pages(promise: Promise) -> None:
    figures = set(_FIGURE.findall(promise.figure))
    assert figures <= set(_FIGURE.findall(promise.linked))
