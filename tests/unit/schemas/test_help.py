"""The help of commands at 80 columns, and their order in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise

import pytest
import typer
from typer.core import TyperGroup

from schemas.command import application, unwrapped

TESSERA = typer.main.get_command(application())
WIDTH = 80


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "dumb")


def paths(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from paths(child, (*path, name))


def help_page(*path: str) -> str:
    output = StringIO()
    with redirect_stdout(output):
        TESSERA.main([*path, "--help"], prog_name="tessera", standalone_mode=False)
    return output.getvalue()


def broken_early(page: str) -> list[str]:
    """Return the lines of the description that end although the next line's first word has room."""
    description = re.split(r"\n *\n", page.partition("╭")[0], maxsplit=1)[-1].splitlines()[1:]
    return [
        line
        for line, following in pairwise(text.strip() for text in description)
        if line and following and len(f"{line} {following.split()[0]}") <= WIDTH - 2
    ]


def panels(*path: str) -> dict[str, list[str]]:
    """Return the commands of a group by the title of their panel."""
    parts = re.split(r"╭─ ([A-Z]\w+) ─+╮", help_page(*path))
    titles = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {
        title: re.findall(r"^│ (\S+)", body, re.MULTILINE)
        for title, body in titles.items()
        if title != "Options"
    }


def marked_up(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the help texts with brackets that rich would read as markup and leave out."""
    texts = [
        getattr(command, "help", None),
        *(getattr(p, "help", None) for p in getattr(command, "params", [])),
    ]
    yield from (f"{' '.join(path)}: {text}" for text in texts if text and re.search(r"\[[a-z#/@]", text))
    if isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from marked_up(child, (*path, name))


def test_help_contains_no_markup() -> None:
    assert not list(marked_up(TESSERA))


@pytest.mark.parametrize(
    "command",
    ["serve", "federation create", "round watch", "compare", "agent run", "agent check", "agent export"],
)
def test_the_most_used_commands_show_an_example(command: str) -> None:
    assert f"`tessera {command} " in " ".join(help_page(*command.split()).split())


@pytest.mark.slow
def test_paragraphs_of_help_fill_eighty_columns() -> None:
    every = list(paths(TESSERA))
    assert len(every) > 40
    assert not {" ".join(path): lines for path in every if (lines := broken_early(help_page(*path)))}


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        ("Do it.\n\n    First half\n    second half.\n    ", "Do it.\n\nFirst half second half."),
        ("Choose:\n\n- a thing\n- another\n  thing", "Choose:\n\n- a thing\n- another\n  thing"),
    ],
)
def test_paragraphs_are_unwrapped_and_lists_are_not(docstring: str, text: str) -> None:
    assert unwrapped(docstring) == text


def test_agent_commands_have_the_order_of_use() -> None:
    shown_panels = panels("agent")
    assert shown_panels["Commands"][:11] == [
        "init",
        "data",
        "check",
        "enrol",
        "run",
        "status",
        "sent",
        "generate",
        "history",
        "export",
        "rollback",
    ]
    assert set(shown_panels["Identity"]) == {"rotate-key", "accept-restored"}
    assert set(shown_panels["Alignment"]) == {"align", "alignment-test", "write-anchors", "make-pivot-pack"}


def test_operator_commands_have_the_order_of_use() -> None:
    assert panels()["Coordinator"] == ["serve", "ready", "migrate", "backup", "payloads"]
    assert panels()["Operator"] == [
        "federation",
        "enrolment",
        "client",
        "round",
        "token",
        "anchors",
        "alignment",
        "report",
        "experts",
        "audit",
    ]
