"""The documentation site: links, navigation, and no fetched resources."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs.generate.site import with_links_of_site

ROOT = Path(__file__).parents[3]


def _on_site(markdown: str, repository: str = "") -> tuple[str, list[str]]:
    warnings: list[str] = []
    text = with_links_of_site(
        markdown,
        document="how-to/deploy.md",
        root=ROOT,
        documents="docs",
        repository=repository,
        warn=warnings.append,
    )
    return text, warnings


def test_a_link_to_a_document_is_kept() -> None:
    link = "See [the plan](../reference/plan.md#adapter)."
    assert _on_site(link) == (link, [])


def test_a_link_outside_docs_becomes_repository_or_path() -> None:
    link = "See [the composition](../../docker-compose.yml#L5) and [`Makefile`](../../Makefile)."
    assert _on_site(link) == ("See the composition (`docker-compose.yml`) and `Makefile`.", [])
    text, _ = _on_site(link, repository="https://example.org/tessera/")
    assert "[the composition](https://example.org/tessera/blob/HEAD/docker-compose.yml#L5)" in text


def test_a_link_to_a_missing_file_is_reported() -> None:
    _, warnings = _on_site("[gone](../../gone.toml)")
    assert warnings == ["../../gone.toml does not exist; correct the link"]


def test_links_in_code_are_kept() -> None:
    fenced = "```text\n[gone](../../gone.toml)\n```"
    assert _on_site(fenced) == (fenced, [])


def test_the_navigation_lists_all_pages_once() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    named = re.findall(r"[\w/-]+\.md", str(navigation))
    documents = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(name for name in documents if not name.startswith("lab-notes/"))


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_foreign_resources(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|img|link)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*", page.read_text()
        )
        assert not fetched, page
