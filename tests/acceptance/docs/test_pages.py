"""Tutorials and how-to guides: existing commands, and valid blocks."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path

import pytest

from tests.acceptance.docs.blocks import PAGES, ROOT, SHELL, VERBS, blocks
from tests.acceptance.docs.command_line import mistakes, scripts, syntax_error
from tests.acceptance.docs.shown import has_line, ids_of, with_ids


def _page_name(page: Path) -> str:
    return f"{page.parent.name}/{page.stem}"


@pytest.mark.parametrize("page", PAGES, ids=_page_name)
def test_commands_of_a_page_exist(page: Path) -> None:
    assert not [mistake for script in scripts(page, blocks(page)) for mistake in mistakes(script)]


def _statements(source: str) -> list[str]:
    """Return the top-level statements of Python source without docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return [ast.unparse(node) for node in tree.body if not isinstance(node, ast.ClassDef) or node.body]


@pytest.mark.parametrize("page", PAGES, ids=_page_name)
def test_shown_parts_are_those_of_files(page: Path) -> None:
    for block in blocks(page):
        for file in block.arguments("part"):
            assert set(_statements(block.body)) <= set(_statements((ROOT / file).read_text("utf-8"))), file


@pytest.mark.parametrize("page", PAGES, ids=_page_name)
def test_skipped_blocks_name_reasons_and_files(page: Path) -> None:
    for block in blocks(page):
        for reason in block.arguments("skip"):
            text, _, file = reason.partition("; ")
            assert text, f"{page.name}:{block.line}: a skip without a reason"
            assert not file or (ROOT / file).exists(), f"{page.name}:{block.line}: {file} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=_page_name)
def test_blocks_of_a_page_can_be_parsed(page: Path) -> None:
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        assert all(verb in VERBS for verb, _ in block.instructions), f"{place}: {block.instructions}"
        assert block.language, f"{place}: a block without a language"
        if block.language in SHELL:
            assert block.commands, place
            assert not [error for command in block.commands if (error := syntax_error(command.text))], place
        elif block.language == "json":
            json.loads(block.body)
        elif block.language == "toml":
            tomllib.loads(block.body)
        elif block.language == "python":
            compile(block.body, place, "exec")


@pytest.mark.parametrize(
    ("script", "mistake"),
    [
        ("tessera agent runn --config x", "tessera agent runn: no such command"),
        ("echo x | tessera agent run --confg x", "tessera agent run --confg: no such option"),
        ("A=$(tessera round lst $FED)", "tessera round lst: no such command"),
        ("make demmo SEED=1", "make demmo: no such target"),
        ("docker compose exec -T postgress pg_dump", "docker compose exec postgress: no such service"),
        ("cat > x <<'EOF'\ntessera nothing\nEOF\ntessera serve", None),
        ("pip install '.[coordinator,rey]'", "pip install [rey]: no such extra"),
        ("python -m pytest -q tests/units", "tests/units: no such file"),
        ("cd deploy/monitorin && promtool test rules x", "deploy/monitorin: no such file"),
    ],
)
def test_mistakes_are_found(script: str, mistake: str | None) -> None:
    assert list(mistakes(script)) == ([mistake] if mistake else [])


def test_outputs_match_pages_up_to_ids_and_numbers() -> None:
    page = ["id         fed_01a1fbf41337fc5d4d2d7805", "...", "│ memory │ 1.7 MiB of weights │"]
    output = "id   fed_99\nname  x\n┏━━━┓\n│ memory │ 256 MiB of weights │\n"
    ids = ids_of(page, output)
    assert ids == {"fed_01a1fbf41337fc5d4d2d7805": "fed_99"}
    assert with_ids("tessera federation start fed_01a1fbf41337fc5d4d2d7805", ids).endswith(" fed_99")
    assert ids_of(page, output + "one line more\n") is None
    assert ids_of(page, output.replace("memory", "money")) is None
    assert ids_of(page[:1], output) is None
    assert has_line("INFO     round 2: delivered", "2026-11-25 01:00:00,123 INFO     round 3: delivered\n")
    assert not has_line("round 2: delivered", "round 3: refused\n")
