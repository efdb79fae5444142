"""Remedies that column errors print make the row load."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from client_agent.data import unread_parts
from client_agent.data.load import BY_COLUMNS, RowOptions, load_examples
from client_agent.data.unread_parts import UnreadParts
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example
from client_agent.row_template import RowTemplate
from client_agent.settings import AgentSettings

QUESTION = [{"role": "user", "content": "q"}]
ANSWER = [{"role": "assistant", "content": "a"}]
WORSE = [{"role": "assistant", "content": "worse"}]
CHAT = QUESTION + ANSWER
SYSTEM = [{"role": "system", "content": "s"}]
TOOLS = [{"type": "function", "function": {"name": "price"}}]
SETTING = re.compile(r'columns = \{[^}]*\}|ignore_columns = \[[^\]]*\]|format = "\w+"')
LEARN_WITHOUT = re.compile(r"; or set ignore_columns = .*")


def example_of(path: Path, row: dict[str, Any], options: RowOptions) -> Example:
    path.write_text(json.dumps(row) + "\n")
    (example,) = load_examples(str(path), options).examples
    return example


def refusal(path: Path, row: dict[str, Any], options: RowOptions = BY_COLUMNS) -> str:
    with pytest.raises(DataInvalid) as refused:
        example_of(path, row, options)
    return str(refused.value)


def options_of(message: str) -> RowOptions:
    """Return the options of the settings that a message prints, read as silo.toml is."""
    settings = tomllib.loads("\n".join(SETTING.findall(message)))
    base = {"url": "http://127.0.0.1", "model": "m", "train": "t", "folder": "f"}
    read = AgentSettings.model_validate({**base, **settings})
    return RowOptions(read.format, read.columns, ignored=read.ignore_columns)


def content(example: Example) -> tuple[str, str]:
    prompt = example.prompt or " ".join(f"{turn.role}: {turn.content}" for turn in example.turns)
    return prompt.strip(), example.completion.strip()


MAPPED = {
    "prompt of turns, answer of turns": (
        {"prompt": QUESTION, "chosen": ANSWER, "rejected": WORSE},
        ("user: q", "a"),
    ),
    "prompt of turns, answer of text": (
        {"prompt": QUESTION, "chosen": "a", "rejected": "worse"},
        ("user: q", "a"),
    ),
    "prompt of text, answer of turns": (
        {"prompt": "q", "chosen": ANSWER, "rejected": WORSE},
        ("user: q", "a"),
    ),
    "prompt and answer of text": ({"prompt": "q", "chosen": "a", "rejected": "worse"}, ("q", "a")),
    "no rejected answer": ({"prompt": "q", "chosen": "a"}, ("q", "a")),
    "question of turns, answer of text, preferred": (
        {"question": QUESTION, "chosen": "a", "rejected": "worse"},
        ("user: q", "a"),
    ),
    "several earlier turns": (
        {"prompt": [*SYSTEM, *CHAT, *QUESTION], "chosen": ANSWER, "rejected": WORSE},
        ("system: s user: q assistant: a user: q", "a"),
    ),
    "system beside a prompt of turns": (
        {"system": "s", "prompt": QUESTION, "chosen": ANSWER, "rejected": WORSE},
        ("system: s user: q", "a"),
    ),
    "instruction, input and preferred answer": (
        {"instruction": "q", "input": "i", "chosen": "a", "rejected": "worse"},
        ("q\n\ni", "a"),
    ),
    "preferred_output": (
        {"input": QUESTION, "preferred_output": ANSWER, "non_preferred_output": WORSE},
        ("user: q", "a"),
    ),
    "whole chats beside a prompt of text": (
        {"prompt": "q", "chosen": CHAT, "rejected": QUESTION + WORSE, "score": 1.5},
        ("user: q", "a"),
    ),
    "whole chats beside a prompt of turns": (
        {"prompt": QUESTION, "chosen": SYSTEM + CHAT, "rejected": QUESTION + WORSE},
        ("system: s user: q", "a"),
    ),
    "whole chats alone": ({"chosen": CHAT, "rejected": QUESTION + WORSE}, ("user: q", "a")),
    "whole texts alone": ({"chosen": "Human: q\n\nAssistant: a", "rejected": "Human: q"}, None),
    "from and value": (
        {
            "prompt": [{"from": "human", "value": "q"}],
            "chosen": [{"from": "gpt", "value": "a"}],
            "rejected": [],
        },
        ("user: q", "a"),
    ),
    "question of turns": ({"question": QUESTION, "answer": "a"}, ("user: q", "a")),
    "question and answer of turns": ({"question": QUESTION, "answer": ANSWER}, ("user: q", "a")),
    "turns of other names": ({"before": QUESTION, "after": ANSWER}, ("user: q", "a")),
    "a chat of another name": ({"dialogue": CHAT, "topic": "x"}, ("user: q", "a")),
    "question and answer": ({"Question": "q", "Answer": "a", "id": 1}, ("q", "a")),
    "two columns": ({"ticket": "q", "desk": "a"}, ("q", "a")),
    "instruction, context and response": (
        {"instruction": "q", "context": "i", "response": "a"},
        ("q\n\ni", "a"),
    ),
    "alpaca with context": ({"instruction": "q", "output": "a", "context": "i"}, ("q\n\ni", "a")),
    "completion with input": ({"prompt": "q", "completion": "a", "input": "i"}, ("q\n\ni", "a")),
    "completion with context": ({"prompt": "q", "completion": "a", "context": "i"}, ("q\n\ni", "a")),
    "system_prompt beside a chat": ({"messages": CHAT, "system_prompt": "s"}, ("system: s user: q", "a")),
    "system_message beside a prompt": (
        {"prompt": "q", "completion": "a", "system_message": "s"},
        ("system: s user: q", "a"),
    ),
    "functions beside a prompt": ({"prompt": "q", "completion": "a", "functions": TOOLS}, ("user: q", "a")),
}


@pytest.mark.parametrize(("row", "expected"), MAPPED.values(), ids=MAPPED)
def test_printed_settings_load_the_row(
    tmp_path: Path, row: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    message = LEARN_WITHOUT.sub("", refusal(tmp_path / "rows.jsonl", row))
    options = options_of(message)
    assert options.columns
    example = example_of(tmp_path / "rows.jsonl", row, options)
    assert content(example) == (expected or ("", row.get("chosen")))
    assert bool(example.tools) == ("functions" in row)


def test_printed_options_of_init_are_the_settings(tmp_path: Path) -> None:
    message = refusal(tmp_path / "rows.jsonl", {"the question": QUESTION, "answer": "a"})
    words = shlex.split(message[message.index("(--column") + 1 :].partition(" of `agent")[0])
    assert tuple(sorted(word.partition("=")[::2] for word in words[1::2])) == options_of(message).columns


def test_mapping_of_settings_stays_in_a_remedy(tmp_path: Path) -> None:
    row = {"ask": "q", "reply": "a", "system_prompt": "s"}
    names = RowOptions(columns=(("completion", "reply"), ("prompt", "ask")))
    message = LEARN_WITHOUT.sub("", refusal(tmp_path / "rows.jsonl", row, names))
    assert content(example_of(tmp_path / "rows.jsonl", row, options_of(message))) == (
        "system: s user: q",
        "a",
    )
    row = {"ask": "q", "reply": "a", "input": "i"}
    message = LEARN_WITHOUT.sub("", refusal(tmp_path / "rows.jsonl", row, names))
    assert content(example_of(tmp_path / "rows.jsonl", row, options_of(message))) == ("q\n\ni", "a")


def test_prompt_inside_an_object_is_named(tmp_path: Path) -> None:
    row = {"input": {"messages": QUESTION}, "preferred_output": ANSWER, "non_preferred_output": WORSE}
    message = refusal(tmp_path / "rows.jsonl", row)
    assert "write the list input.messages as a column prompt" in message
    followed = {**row, "prompt": QUESTION}
    del followed["input"]
    example = example_of(tmp_path / "rows.jsonl", followed, options_of(message))
    assert content(example) == ("user: q", "a")


def test_missing_prompt_of_preferences_is_named(tmp_path: Path) -> None:
    row = {"chosen": ANSWER, "rejected": WORSE}
    message = refusal(tmp_path / "rows.jsonl", row)
    assert "write what comes before the answer as a column prompt" in message
    example = example_of(tmp_path / "rows.jsonl", {**row, "prompt": "q"}, options_of(message))
    assert content(example) == ("user: q", "a")


ROWS: dict[str, dict[str, Any]] = {
    "text": {"text": "a"},
    "prompt_completion": {"prompt": "q", "completion": "a"},
    "turns": {"prompt": QUESTION, "completion": ANSWER},
    "messages": {"messages": CHAT},
    "sharegpt": {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    "alpaca": {"instruction": "q", "input": "i", "output": "a"},
}
COLUMNS = sorted({*unread_parts._REMEDIES, *unread_parts._OTHER_NAMES, "input"})


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("column", COLUMNS)
def test_remedies_of_unread_columns_load_the_row(tmp_path: Path, shape: str, column: str) -> None:
    row = {**ROWS[shape], column: TOOLS if column in ("tools", "functions") else "x"}
    try:
        example_of(tmp_path / "rows.jsonl", row, RowOptions())
    except DataInvalid as error:
        message = str(error)
    else:
        return  # the format reads the column, or names it as not used
    remedy, without = LEARN_WITHOUT.sub("", message), LEARN_WITHOUT.findall(message)
    if "is not read" in message:
        ignored = example_of(tmp_path / "rows.jsonl", row, options_of(without[0]))
        assert content(ignored) == content(example_of(tmp_path / "plain.jsonl", ROWS[shape], RowOptions()))
    if SETTING.search(remedy):
        example = example_of(tmp_path / "rows.jsonl", row, options_of(remedy))
        assert "x" in str(example) or example.tools, remedy


@pytest.mark.parametrize("shape", ROWS)
def test_ignoring_names_all_columns_at_once(tmp_path: Path, shape: str) -> None:
    row = {**ROWS[shape], "chosen": "x", "rejected": "y", "weight": 0.5}
    message = refusal(tmp_path / "rows.jsonl", row, RowOptions(ignored=("weight",)))
    options = options_of(message)
    assert set(options.ignored) == {"chosen", "rejected", "weight"}
    example_of(tmp_path / "rows.jsonl", row, options)


def test_system_column_beside_system_turn_is_ignorable(tmp_path: Path) -> None:
    row = {"messages": SYSTEM + CHAT, "system": "another"}
    options = options_of(refusal(tmp_path / "rows.jsonl", row))
    assert content(example_of(tmp_path / "rows.jsonl", row, options)) == ("system: s user: q", "a")


def test_class_label_is_learnt_by_the_advised_template(tmp_path: Path) -> None:
    row = {"text": "q", "label": 1}
    assert "write a template with options" in refusal(tmp_path / "rows.jsonl", row)
    template = RowTemplate(prompt="{text}: ", answer="{label}", options=["bad", "good"])
    assert content(example_of(tmp_path / "rows.jsonl", row, RowOptions(template=template))) == ("q:", "good")


def test_mixed_flags_keep_the_ignored_columns(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid) as refused:
        unread_parts.refuse_mixed_flags(
            "rows.jsonl", UnreadParts(flags=frozenset({("good", True), ("good", False)})), ["weight"]
        )
    assert options_of(str(refused.value)).ignored == ("weight", "good")
