"""Tables in terminals of different widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coordinator.cli.output import fitting_table, table, wrapped

COLUMNS = ["round", "state", "opened", "bytes"]
ROWS = [(12, "published", "3 min ago", "1.2 MiB up, 3.4 MiB down")]


def printed_table(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    file = io.StringIO()
    Console(file=file, width=width).print(fitting_table(COLUMNS, ROWS, optional=("bytes", "opened")))
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "columns"),
    [(120, COLUMNS), (40, ["round", "state", "opened"]), (24, ["round", "state"])],
)
def test_optional_columns_are_dropped_until_the_table_fits(
    width: int, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = printed_table(width, monkeypatch)
    header = next(line for line in output.splitlines() if "round" in line)
    assert header.split() == columns
    assert "published" in output
    assert max(map(len, output.splitlines())) <= width


def test_empty_columns_are_dropped_and_numbers_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = io.StringIO()
    rows = [("aster", None, "0.500", 4), ("birch", "-", "12.250", 31)]
    shown = fitting_table(["client", "why", "loss", "rounds"], rows, optional=("why", "rounds"))
    Console(file=file, width=80).print(shown)
    lines = [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]
    assert lines[0].split() == ["client", "loss", "rounds"]
    assert lines[2].split() == ["aster", "0.500", "4"]
    ends = {line.index(word) + len(word) for line, word in zip(lines[2:], ("0.500", "12.250"), strict=True)}
    assert len(ends) == 1, "numbers end in one column"


def test_text_is_wrapped_only_at_spaces() -> None:
    token = "tsr1_" + "x" * 90
    content = wrapped(f"a token such as {token} stays in one piece", 40, indent="   ")
    assert token in content
    assert content.splitlines() == ["a token such as", f"   {token}", "   stays in one piece"]


def test_a_long_name_continues_on_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = io.StringIO()
    name = "clinic-of-the-university-hospital-of-north-harbour"
    Console(file=file, width=60).print(table(["id", "name"], [("cli_" + "0" * 24, name)]))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.split()[-1] for line in lines[3:-1]) == name
