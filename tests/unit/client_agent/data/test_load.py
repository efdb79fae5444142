"""Examples from files of all kinds, with mapped columns and bad rows refused or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client_agent.data.load import RowOptions, load_examples
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example, Turn
from tests.unit.client_agent.data.rows import ROWS, write_csv, write_parquet


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_json(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


WRITERS = {
    "rows.jsonl": write_jsonl,
    "rows.json": write_json,
    "rows.csv": write_csv,
    "rows.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_all_kinds_give_the_same_examples(tmp_path: Path, name: str) -> None:
    loaded = load_examples(WRITERS[name](tmp_path / name, ROWS))
    assert (loaded.format, loaded.rows) == ("prompt_completion", 4)
    assert loaded.examples == tuple(Example(row["prompt"], row["completion"]) for row in ROWS)


def test_folder_saved_by_datasets_is_read_by_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    sides = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    datasets.DatasetDict(sides).save_to_disk(str(tmp_path / "saved"))
    assert load_examples(f"{tmp_path / 'saved'}:test").rows == 1
    with pytest.raises(DataInvalid, match=r"choose a split, such as .*saved:test; it has train, test"):
        load_examples(str(tmp_path / "saved"))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            Example("", "b", (Turn("user", "a"),)),
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            Example("", "b", (Turn("user", "a"),)),
        ),
        ({"instruction": "Add.", "input": "1 1", "output": "2"}, Example("Add.\n\n1 1\n\n", "2")),
        ({"instruction": "Add.", "input": "", "output": "2"}, Example("Add.\n\n", "2")),
        ({"text": "once"}, Example("", "once")),
    ],
)
def test_format_is_found_from_the_columns(tmp_path: Path, row: dict[str, Any], expected: Example) -> None:
    assert load_examples(write_jsonl(tmp_path / "rows.jsonl", [row])).examples == (expected,)


def test_columns_are_mapped(tmp_path: Path) -> None:
    rows = [{"question": "a", "reply": "b", "prompt": "not this"}]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    columns = (("prompt", "question"), ("completion", "reply"))
    loaded = load_examples(source, RowOptions("prompt_completion", columns))
    assert loaded.examples == (Example("a", "b"),)
    with pytest.raises(DataInvalid, match=r"column answer is missing \(columns\.completion\)"):
        load_examples(source, RowOptions("prompt_completion", (("completion", "answer"),)))


def test_bad_rows_are_refused_by_place_or_counted(tmp_path: Path) -> None:
    rows = [ROWS[0], {"prompt": "x", "completion": 5}, ROWS[1]]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataInvalid, match=r"rows.jsonl line 2: column completion is not a text but 5"):
        load_examples(source)
    loaded = load_examples(source, RowOptions(skip_bad_rows=True))
    assert (len(loaded.examples), loaded.rows, len(loaded.skipped)) == (2, 3, 1)
    assert "line 2: column completion" in loaded.skipped[0]


def test_source_of_bad_rows_only_is_refused(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "", "completion": "b"}])
    with pytest.raises(DataInvalid, match=r"none of its 1 rows is an example:\n .*line 1"):
        load_examples(source, RowOptions(skip_bad_rows=True))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no example"),
        ('{"prompt": "a"}\n', "those of no format"),
        ("[1]\n", "line 1: not a JSON object"),
        ("{\n", "line 1: not JSON"),
        ('{"prompt": "\\ud800", "completion": "b"}\n', "line 1: not JSON"),
    ],
)
def test_file_without_examples_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(DataInvalid, match=complaint):
        load_examples(str(file))


@pytest.mark.parametrize("content", ["prompt,completion\na\n", "prompt,completion\na,b,c\n", 'prompt\n"a\n'])
def test_csv_row_with_missing_cells_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(content)
    with pytest.raises(DataInvalid, match=r"rows\.csv row \d+: "):
        load_examples(str(file))


def test_labels_in_a_csv_file_are_text(tmp_path: Path) -> None:
    rows = [{"premise": "It rains.", "hypothesis": "The sun shines.", "label": "2"}]
    loaded = load_examples(write_csv(tmp_path / "rows.csv", rows), RowOptions("mnli"))
    assert loaded.examples[0].completion == " contradiction"


@pytest.mark.parametrize("name", ["rows.txt", "rows", "rows.jsonl.bak", "rows.json"])
def test_json_lines_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert load_examples(write_jsonl(tmp_path / name, ROWS)).rows == 4


BAD_FILES = {
    "rows.jsonl": '{"prompt": "a"}\n{\n[1]\n{"prompt": "a", "completion": "b"}\n',
    "rows.json": '[{"prompt": "a"}, 5, {"prompt": "a", "completion": "b"}]',
    "rows.csv": "prompt,completion\na\na,\na,b\na,b,c\n",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_rows_of_all_kinds_are_counted(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(BAD_FILES[name])
    loaded = load_examples(str(file), RowOptions(skip_bad_rows=True))
    assert loaded.examples == (Example("a", "b"),)
    assert (loaded.format, len(loaded.skipped)) == ("prompt_completion", loaded.rows - 1)
    assert all(error.startswith(str(file)) for error in loaded.skipped)


def test_rows_without_a_mapped_column_are_counted(tmp_path: Path) -> None:
    rows = [{"question": "a", "completion": "b"}, {"completion": "b"}]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    loaded = load_examples(source, RowOptions(columns=(("prompt", "question"),), skip_bad_rows=True))
    assert loaded.examples == (Example("a", "b"),)
    assert len(loaded.skipped) == 1


def test_long_cells_are_read(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * 200_000, "completion": " y"}]
    assert load_examples(write_csv(tmp_path / "rows.csv", rows)).examples[0].completion == " y"


@pytest.mark.parametrize("blank", ["   ", "\n", "\u00a0", "\u200b", "\x07"])
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "completion": "BLANK"},
        {"prompt": "BLANK", "completion": "b"},
        {"instruction": "a", "output": "BLANK"},
        {"text": "BLANK"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "BLANK"}]},
        {"conversations": [{"from": "human", "value": "BLANK"}, {"from": "gpt", "value": "b"}]},
    ],
)
def test_text_of_white_space_is_empty(tmp_path: Path, row: dict[str, Any], blank: str) -> None:
    row = json.loads(json.dumps(row).replace('"BLANK"', json.dumps(blank)))
    with pytest.raises(DataInvalid, match=r"is empty \(white space alone\)"):
        load_examples(write_jsonl(tmp_path / "rows.jsonl", [row]))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("first_line", ["", "sep={}\n", '"sep={}"\r\n'])
def test_delimiter_of_a_csv_file_is_found(tmp_path: Path, delimiter: str, first_line: str) -> None:
    file = tmp_path / "rows.csv"
    cells = (("prompt", "completion"), ('"a,;|\t b"', "1"), ("c", '"2\n3"'))
    lines = "".join(delimiter.join(row) + "\n" for row in cells)
    file.write_text(first_line.format(delimiter) + lines)
    assert load_examples(str(file)).examples == (Example("a,;|\t b", "1"), Example("c", "2\n3"))


@pytest.mark.parametrize(
    "content",
    [
        {"data": ROWS},
        {"version": "1.1", "data": ROWS},
        {"train": ROWS, "note": ["a"]},
        ROWS,
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_list_of_rows_may_be_in_an_object(tmp_path: Path, content: Any, indent: int | None) -> None:
    file = tmp_path / "rows.json"
    file.write_text("\ufeff" + json.dumps(content, indent=indent))
    assert load_examples(str(file)).examples == tuple(Example(r["prompt"], r["completion"]) for r in ROWS)


def test_json_file_may_be_one_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file.write_text(json.dumps({"messages": turns}, indent=1))
    assert load_examples(str(file)).examples == (Example("", "b", (Turn("user", "a"),)),)


@pytest.mark.parametrize("source", ["none.jsonl", "none.csv", "none.json", "none.parquet", "hub:a:b:c:d"])
def test_source_that_cannot_be_read_is_refused(tmp_path: Path, source: str) -> None:
    place = source if source.startswith("hub:") else str(tmp_path / source)
    with pytest.raises(DataInvalid):
        load_examples(place)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_byte_order_mark_is_not_part_of_text(tmp_path: Path, name: str) -> None:
    file = Path(WRITERS[name](tmp_path / name, ROWS))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_examples(str(file)).examples == tuple(Example(r["prompt"], r["completion"]) for r in ROWS)


@pytest.mark.parametrize(
    ("name", "advice"), [("rows.TSV", "convert"), ("rows.jsonl.gz", "unpack"), ("rows.xlsx", "convert")]
)
def test_unsupported_file_types_are_refused_by_extension(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b\x00\n" * 3)
    for options in (RowOptions(), RowOptions(skip_bad_rows=True)):
        with pytest.raises(DataInvalid, match=f"files are not read; {advice}"):
            load_examples(str(tmp_path / name), options)
