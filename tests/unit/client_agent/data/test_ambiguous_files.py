"""Ambiguous files: duplicate keys and columns, two delimiters, two lists of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.data.load import RowOptions, load_examples
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example
from tests.unit.client_agent.data.rows import INSTRUCTIONS, ROWS, answer, messages, write_task


@pytest.mark.parametrize("names", ["prompt;completion,label", "prompt;one, two, or three;completion"])
def test_csv_delimiter_divides_first_row_consistently(tmp_path: Path, names: str) -> None:
    file = tmp_path / "rows.csv"
    cells = names.count(";")
    file.write_text(f"{names}\na{';b' * cells}\n")
    loaded = load_examples(str(file), RowOptions(columns=(("completion", names.rpartition(";")[2]),)))
    assert loaded.examples == (Example("a", "b"),)


def test_duplicate_csv_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("prompt,completion,completion\na,good,bad\n")
    with pytest.raises(DataInvalid, match="the first line has the column completion twice; rename or remove"):
        load_examples(str(file))
    file.write_text("prompt,completion,,\na,b,,\n")  # as spreadsheets write empty columns
    assert load_examples(str(file)).examples == (Example("a", "b"),)


TWICE = '{"prompt": "q", "completion": "good", "completion": "bad"}'
GOOD = '{"prompt": "q", "completion": "good"}'
TURN = (
    '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "content": "b"}]}'
)


@pytest.mark.parametrize("row", [TWICE, TURN])
@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.jsonl", "{good}\n{row}\n", "line 2"),
        ("rows.json", "{good}\n{row}\n", "line 2"),
        ("rows.json", "[{good},\n{row}]", "row 2"),
        ("rows.json", '{{"data": [{good}, {row}]}}', "row 2"),
    ],
)
def test_duplicate_json_key_names_its_row(
    tmp_path: Path, row: str, name: str, content: str, place: str
) -> None:
    file = tmp_path / name
    file.write_text(content.format(good=GOOD, row=row))
    with pytest.raises(
        DataInvalid, match=rf'{name} {place}: has the key "co[a-z]*" twice in an object; remove'
    ):
        load_examples(str(file))
    loaded = load_examples(str(file), RowOptions(skip_bad_rows=True))
    assert (loaded.examples, len(loaded.skipped)) == ((Example("q", "good"),), 1)


@pytest.mark.parametrize("content", [TWICE, f'{{"data": [{GOOD}],\n"data": [{GOOD}, {GOOD}]}}'])
def test_duplicate_key_of_a_json_object_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.json"
    file.write_text(content)
    with pytest.raises(DataInvalid, match=r'has the key "(completion|data)" twice'):
        load_examples(str(file))


def test_several_lists_of_objects_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"version": "1", "data": ROWS, "meta": [{"author": "x"}]}))
    with pytest.raises(DataInvalid, match="several lists of objects, data, meta; leave the list of the rows"):
        load_examples(str(file))


def test_duplicate_key_of_an_instance_names_it(tmp_path: Path) -> None:
    file = tmp_path / "task1.json"
    write_task(file, {"input": "leaves", "output": ["tea"]}, {"input": "beans", "output": ["coffee"]})
    file.write_text(file.read_text().replace('"input": "beans"', '"input": "x", "input": "beans"', 2))
    with pytest.raises(DataInvalid, match=r'task1.json instance 2: has the key "input" twice'):
        load_examples(str(file), INSTRUCTIONS)


@pytest.mark.parametrize(
    "row",
    [
        messages(answer(tool_calls='[{"name": "price", "arguments": {"item": "pot", "item": "pan"}}]')),
        messages(answer(function_call={"name": "price", "arguments": '{"item": "pot", "item": "pan"}'})),
        messages(answer(), tools='[{"name": "price", "item": "pot", "item": "pan"}]'),
    ],
)
def test_duplicate_key_in_a_cell_names_its_row(tmp_path: Path, row: dict[str, object]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataInvalid, match=r'line 1.*: column .*has the key "item" twice in an object'):
        load_examples(str(file))
