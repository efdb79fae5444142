"""Names and docstrings of the code: no pronouns, and no vague openings (CONTRIBUTING.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.code_figures import (
    HERE,
    PRONOUNS,
    QUESTIONS,
    VAGUE_OPENINGS,
    bindings,
    function_docstrings,
    sources,
)

WIRE_FIELDS = frozenset(
    {
        ("coordinator/db/tables/federations.py", "held"),
        ("schemas/messages/rounds.py", "held"),
        ("schemas/messages/scores.py", "kept"),
    }
)
"""Columns and fields of messages, as (file, name): databases and both sides have them."""


def pronouns(file: Path) -> list[str]:
    return [
        f"{file.relative_to(HERE)}:{binding.line} {binding.name}"
        for binding in bindings(file)
        if binding.name.strip("_") in PRONOUNS
        and (str(file.relative_to(HERE)), binding.name) not in WIRE_FIELDS
    ]


def vague_docstrings(file: Path) -> list[str]:
    return [
        f"{file}:{docstring.line} {docstring.first_word}"
        for docstring in function_docstrings(file)
        if docstring.first_word in VAGUE_OPENINGS | QUESTIONS
    ]


@pytest.mark.slow
def test_names_are_no_pronouns() -> None:
    assert not [name for file in sources(HERE) for name in pronouns(file)]


@pytest.mark.slow
def test_docstrings_do_not_begin_vaguely() -> None:
    assert not [opening for file in sources(HERE) for opening in vague_docstrings(file)]


@pytest.mark.parametrize(
    "line", ["one = 1", "def f(told): ...", "for seen in []: ...", "class A:\n    kept: int"]
)
def test_pronouns_are_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "source.py"
    file.write_text(line)
    assert any(binding.name in PRONOUNS for binding in bindings(file))


@pytest.mark.parametrize("docstring", ["Give the number.", "Say, in words, who.", "How far it is."])
def test_vague_docstrings_are_found(tmp_path: Path, docstring: str) -> None:
    file = tmp_path / "source.py"
    file.write_text(f'def f():\n    """{docstring}"""')
    assert vague_docstrings(file)
