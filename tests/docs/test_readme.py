"""The README and the linked pages: length, links, and figures."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_WORDS = 900
_LINK = re.compile(r"!?\[[^\]\[]*\]\(([^)\s]+)\)|!?\[!\[[^\]]*\]\([^)]*\)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md")]
    + [*(ROOT / "docs/explanation").glob("*.md")]
)


def _links(page: Path) -> list[str]:
    text = _FENCE.sub("", page.read_text())
    targets = [first or second for first, second in _LINK.findall(text)]
    return [target for target in targets if "://" not in target and not target.startswith("mailto:")]


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation site make them."""
    headings = re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in plain)


def test_the_readme_has_at_most_900_words() -> None:
    words = len((ROOT / "README.md").read_text().split())
    assert words <= MOST_WORDS, f"README.md has {words} words; move text to docs/"


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    broken = []
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in _anchors(target):
            broken.append(f"{link}: no such heading")
    assert not broken, f"{page.relative_to(ROOT)}: {broken}"


def test_the_readmes_third_paragraph_states_the_trust_model() -> None:
    paragraphs = [text for text in (ROOT / "README.md").read_text().split("\n\n") if text[0] not in "#!"]
    assert "Whom to trust" in paragraphs[2]
    assert "no code from outside ever runs in a silo" in paragraphs[2]


def _section(page: Path, anchor: str) -> str:
    """Return the text below the heading with this anchor, up to the next heading of the same level."""
    parts = re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)
    return next(part for part in parts if anchor in _anchors_of(part))


def _anchors_of(part: str) -> frozenset[str]:
    heading = part.partition("\n")[0].lstrip("# ")
    return frozenset({re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")})


_MEASURED = re.compile(r"\d*\.\d+")
_NOTES = [
    line
    for line in (ROOT / "README.md").read_text().splitlines()
    if line.startswith("|") and "docs/lab-notes/" in line
]


@pytest.mark.parametrize("row", _NOTES, ids=lambda row: row.split("]")[0][3:])
def test_results_of_the_readme_are_in_lab_notes(row: str) -> None:
    (target,) = (link for link in _LINK.findall(row))
    path, _, anchor = target[0].partition("#")
    figures = _MEASURED.findall(row.replace(target[0], ""))
    assert figures
    section = _section(ROOT / path, anchor)
    assert [figure for figure in figures if figure not in section] == []


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
    assert _links(page) == ["#a-page", "#another", "c.md"]
    assert _anchors(page) == {"a-page"}
