"""Rows and files of a silo's data."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from client_agent.data.load import RowOptions

ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(4)]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return str(path)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def messages(*turns: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "How much?"}, *turns], **columns}


def answer(content: Any = "12", **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


INSTRUCTIONS = RowOptions("natural_instructions")


def write_task(file: Path, *instances: dict[str, Any], categories: list[str] | None = None) -> None:
    task = {"Definition": ["Name the drink.", "One word."], "Categories": categories, "Contributors": []}
    extra = [{"input": "beans", "output": "coffee", "explanation": "-"}]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(task | {"Positive Examples": extra, "Instances": list(instances)}, indent=1))
