"""Columns that a format does not read: ignored, named, or refused with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client_agent.data.load import RowOptions, SourceExamples, load_examples
from client_agent.errors import DataInvalid
from client_agent.row_template import RowTemplate
from tests.unit.client_agent.data.rows import write_csv, write_parquet

PLAIN = {"prompt": "a", "completion": "b"}
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def load(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> SourceExamples:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_examples(str(file), RowOptions(**options))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("label", True),
        ("label", False),
        ("label", 0),
        ("kto_tag", "false"),
        ("rejected", "c"),
        ("tools", "[{}"),
        ("images", ["a.png"]),
        ("reasoning_content", "since"),
        ("suffix", "c"),
        ("weight", 0.5),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("system_prompt", "You sell pots."),
    ],
)
@pytest.mark.parametrize("row", [{"text": "a"}, PLAIN, CHAT, {"instruction": "a", "output": "b"}])
def test_column_that_changes_learning_is_refused(
    tmp_path: Path, row: dict[str, Any], column: str, value: object
) -> None:
    with pytest.raises(DataInvalid, match=column):
        load(tmp_path, {**row, column: value})
    ignored = load(tmp_path, {**row, column: value}, ignored=(column,))
    assert ignored == load(tmp_path, row)
    skipped = load(tmp_path, {**row, column: value}, row, skip_bad_rows=True)
    assert (skipped.examples, len(skipped.skipped)) == (ignored.examples, 1)


def test_refusal_names_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        DataInvalid,
        match=r"line 1: column label changes what is learnt.*keep those that are true.*"
        r'ignore_columns = \["label"\] in silo.toml',
    ):
        load(tmp_path, {**PLAIN, "label": True})
    with pytest.raises(DataInvalid, match=r'columns = \{ input = "context" \}'):
        load(tmp_path, {"instruction": "a", "output": "b", "context": "c"})


@pytest.mark.parametrize("key", ["tools", "refusal", "label", "images"])
def test_turn_key_that_changes_learning_is_refused(tmp_path: Path, key: str) -> None:
    row = json.loads(json.dumps(CHAT))
    row["messages"][1][key] = ["x"]
    with pytest.raises(DataInvalid, match=rf"column messages.{key} changes what is learnt"):
        load(tmp_path, row)
    assert load(tmp_path, row, ignored=(key,)) == load(tmp_path, CHAT)


@pytest.mark.parametrize("column", ["is_good", "accepted"])
@pytest.mark.parametrize("row", [PLAIN, CHAT, {"text": "a"}])
def test_boolean_column_is_refused_under_any_name(tmp_path: Path, row: dict[str, Any], column: str) -> None:
    good, bad = ({**row, column: value} for value in (True, False))
    for options in ({}, {"skip_bad_rows": True}):
        with pytest.raises(
            DataInvalid,
            match=rf"rows.jsonl: column {column} is true in some rows and false in others.*keep those that "
            rf'are true.*ignore_columns = \["{column}"\] in silo.toml',
        ):
            load(tmp_path, good, bad, **options)
    assert load(tmp_path, good, bad, ignored=(column,)) == load(tmp_path, row, row)
    assert load(tmp_path, good, good).unused.sentences() == [f"not used: {column}"]


def test_boolean_text_in_csv_is_refused(tmp_path: Path) -> None:
    rows = [{**PLAIN, "is_correct": value} for value in ("True", "False")]
    with pytest.raises(DataInvalid, match="column is_correct is true in some rows"):
        load_examples(write_csv(tmp_path / "rows.csv", rows))


def test_boolean_key_of_turns_is_refused(tmp_path: Path) -> None:
    row = json.loads(json.dumps(CHAT))
    row["messages"][0]["is_good"], row["messages"][1]["is_good"] = True, False
    with pytest.raises(DataInvalid, match=r"column messages\.is_good is true in some rows"):
        load(tmp_path, row)
    assert load(tmp_path, row, ignored=("is_good",)) == load(tmp_path, CHAT)


def test_template_may_leave_boolean_columns_out(tmp_path: Path) -> None:
    rows = [{"text": "a", "topic": "x", "is_good": value} for value in (True, False)]
    loaded = load(tmp_path, *rows, template=RowTemplate(prompt="{text}", answer="{topic}"))
    assert loaded.unused.sentences() == ["not used: is_good"]


def test_harmless_unread_columns_are_named(tmp_path: Path) -> None:
    row = json.loads(json.dumps(CHAT)) | {
        "mood": "kind",
        "id": 1,
        "thread_id": 2,
        "source": "web",
        "tools": [],
    }
    row["messages"][0]["sticker"] = "cat"
    row["messages"][1]["refusal"] = None
    unused = load(tmp_path, row, {**PLAIN, "tone\x1b": "x"}, {**PLAIN, "weight": 1, "note": ""}).unused
    assert unused.sentences() == ["not used: messages.sticker, mood, tone\\x1b"]


def test_columns_unread_by_a_template_are_named(tmp_path: Path) -> None:
    row = {"question": "is it", "passage": "it is", "answer": True, "title": "x", "idx": 1}
    assert load(tmp_path, row, format="boolq").unused.sentences() == ["not used: title"]


def test_choice_between_two_formats_is_reported(tmp_path: Path) -> None:
    alpaca = {"instruction": "a", "input": "x", "output": "b", "text": "a x b"}
    assert load(tmp_path, alpaca).unused.sentences() == [
        "not used: text",
        "rows are read as alpaca, and have the columns of text too; set format to choose",
    ]
    assert load(tmp_path, alpaca, format="text").unused.sentences() == [
        "not used: input, instruction, output",
        "rows are read as text, and have the columns of alpaca too; set format to choose",
    ]


def test_null_columns_of_parquet_are_absent(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "price", "arguments": {"item": "pot"}}}
    call_message = {"type": "function", "function": {"name": "stock", "arguments": {"shop": "x"}}}
    rows = [
        {**PLAIN, "messages": None},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call_message]}]},
    ]
    plain, first, second = load_examples(write_parquet(tmp_path / "rows.parquet", rows)).examples
    assert (plain.prompt, first.completion) == ("a", "")
    assert json.loads(first.answer_fields) == {"tool_calls": [call]}
    assert json.loads(second.answer_fields) == {"tool_calls": [call_message]}


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ("question,answer", 'columns = { prompt = "question", completion = "answer" }'),
        ("source,Question,Answer", "--column prompt=Question --column completion=Answer"),
        ("ticket,desk", 'columns = { prompt = "ticket", completion = "desk" }'),
        ("the ticket,reply", "--column 'prompt=the ticket' --column completion=reply"),
        ("instruction,context,response", 'columns = { output = "response", input = "context" }'),
        ("prompt,response", 'columns = { completion = "response" }'),
        ("prompt,chosen,rejected", 'columns = { completion = "chosen" } and ignore_columns = ["rejected"]'),
        ("one,two,three", "map columns (--column prompt=question"),
    ],
)
def test_mapping_is_suggested_for_unknown_columns(tmp_path: Path, columns: str, advice: str) -> None:
    row = dict.fromkeys(columns.split(","), "x")
    with pytest.raises(DataInvalid) as refused:
        load_examples(write_csv(tmp_path / "rows.csv", [row]))
    assert advice in str(refused.value)


def test_chat_column_of_another_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match=r'columns = \{ messages = "dialogue" \}'):
        load(tmp_path, {"dialogue": CHAT["messages"], "topic": "x"})
