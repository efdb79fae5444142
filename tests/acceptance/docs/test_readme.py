"""The README and the linked pages: length, links, and figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.docs.headings import anchors, links, section

ROOT = Path(__file__).parents[3]
MOST_WORDS = 900
_PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md")]
    + [*(ROOT / "docs/explanation").glob("*.md")]
)


def test_the_readme_has_at_most_900_words() -> None:
    words = len((ROOT / "README.md").read_text().split())
    assert words <= MOST_WORDS, f"README.md has {words} words; move text to docs/"


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    broken = []
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{link}: no such heading")
    assert not broken, f"{page.relative_to(ROOT)}: {broken}"


def test_the_readmes_third_paragraph_states_the_trust_model() -> None:
    paragraphs = [text for text in (ROOT / "README.md").read_text().split("\n\n") if text[0] not in "#!"]
    assert "Whom to trust" in paragraphs[2]
    assert "no code from outside ever runs in a silo" in paragraphs[2]


_MEASURED = re.compile(r"\d*\.\d+")
_NOTES = [
    line
    for line in (ROOT / "README.md").read_text().splitlines()
    if line.startswith("|") and "docs/lab-notes/" in line
]


@pytest.mark.parametrize("row", _NOTES, ids=lambda row: row.split("]")[0][3:])
def test_results_of_the_readme_are_in_lab_notes(row: str) -> None:
    (target,) = links(row)
    path, _, anchor = target.partition("#")
    figures = _MEASURED.findall(row.replace(target, ""))
    assert figures
    note = section(ROOT / path, anchor)
    assert [figure for figure in figures if figure not in note] == []


def test_files_of_common_changes_exist() -> None:
    page = (ROOT / "docs/explanation/where-to-change.md").read_text()
    named = set(re.findall(r"`([\w.-]+/[\w/.-]+)`", page))
    assert len(named) > 30
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_results_of_the_readme_are_found() -> None:
    assert len(_NOTES) == 3


def test_links_and_anchors_of_a_page_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](#a-page) [b](#another) [c](c.md)\n```\n[d](d.md)\n```\n")
    assert links(page.read_text()) == ["#a-page", "#another", "c.md"]
    assert anchors(page) == {"a-page"}
