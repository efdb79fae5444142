"""Tables in terminals of different widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coordinator.cli.output import fitting_table

COLUMNS = ["round", "state", "opened", "bytes"]
ROWS = [(12, "published", "3 min ago", "1.2 MiB up, 3.4 MiB down")]


def shown(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    file = io.StringIO()
    Console(file=file, width=width).print(fitting_table(COLUMNS, ROWS, optional=("bytes", "opened")))
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "columns"),
    [(120, COLUMNS), (40, ["round", "state", "opened"]), (24, ["round", "state"])],
)
def test_optional_columns_go_until_the_table_fits(
    width: int, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = shown(width, monkeypatch)
    header = next(line for line in output.splitlines() if "round" in line)
    assert header.split() == columns
    assert "published" in output
    assert max(map(len, output.splitlines())) <= width
