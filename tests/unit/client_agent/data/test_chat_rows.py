"""Chats in the formats of LLaMA-Factory, ShareGPT, OpenAI and TRL are read completely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client_agent.data.load import RowOptions, load_examples
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example, Turn
from tests.unit.client_agent.data.rows import answer, messages

FUNCTION = {"name": "price", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"type": "function", "function": {"name": "price", "arguments": {"item": "pot"}}}
CALLED = json.dumps({"tool_calls": [CALL]})
QUESTION = Turn("user", "How much?")
SYSTEM = Turn("system", "You sell pots.")


def loaded(tmp_path: Path, row: dict[str, Any], **options: Any) -> Example:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (example,) = load_examples(str(file), RowOptions(**options)).examples
    return example


ALPACA = {"instruction": "How much?", "output": "12"}
CHATS = {
    "alpaca with system": ({**ALPACA, "system": "You sell pots."}, (SYSTEM, QUESTION)),
    "alpaca with history": (
        {**ALPACA, "input": None, "history": [["Which?", "The pot."]]},
        (Turn("user", "Which?"), Turn("assistant", "The pot."), QUESTION),
    ),
    "alpaca with empty history": ({**ALPACA, "history": []}, (QUESTION,)),
    "prompt with system": (
        {"prompt": "How much?", "completion": "12", "system": "You sell pots."},
        (SYSTEM, QUESTION),
    ),
    "sharegpt with system": (
        {
            "system": "You sell pots.",
            "conversations": [{"from": "human", "value": "How much?"}, {"from": "gpt", "value": "12"}],
        },
        (SYSTEM, QUESTION),
    ),
    "sharegpt with roles of messages": (
        {"conversations": [{"role": "user", "content": "How much?"}, answer()]},
        (QUESTION,),
    ),
    "messages with the same system": (
        {"messages": [{"role": "system", "content": SYSTEM.content}, *messages(answer())["messages"]]}
        | {"system": SYSTEM.content},
        (SYSTEM, QUESTION),
    ),
    "conversational prompt and completion": (
        {
            "prompt": [*messages(answer("Which?"))["messages"], messages()["messages"][0]],
            "completion": [answer()],
        },
        (QUESTION, Turn("assistant", "Which?", learnt=False), QUESTION),
    ),
    "text prompt and conversational completion": (
        {"prompt": "How much?", "completion": [answer()]},
        (QUESTION,),
    ),
    "parts of text": (
        messages(answer([{"type": "text", "text": "1"}, {"type": "output_text", "text": "2"}])),
        "1\n2",
    ),
    "null columns and keys": (
        {"prompt": None, "completion": None, "conversations": None, "tools": None, "system": None}
        | messages(answer(name=None, tool_calls=None, weight=None)),
        (QUESTION,),
    ),
    "an answer of weight 0": (
        messages(answer("bad", weight=0), {"role": "user", "content": "How much?"}, answer(weight=1)),
        (QUESTION, Turn("assistant", "bad", learnt=False), QUESTION),
    ),
    "a last answer of weight 0": (
        messages(answer(), {"role": "user", "content": "Sure?"}, answer("no", weight=0)),
        (QUESTION,),
    ),
    "roles in capitals": (
        {
            "conversations": [
                {"from": "System", "value": SYSTEM.content},
                {"from": "Human", "value": "How much?"},
                {"from": "GPT", "value": "12"},
            ]
        },
        (SYSTEM, QUESTION),
    ),
    "roles of messages in capitals": (
        {"messages": [{"role": "User", "content": "How much?"}, {"role": "Assistant", "content": "12"}]},
        (QUESTION,),
    ),
    "a developer's turn": (
        {"messages": [{"role": "developer", "content": SYSTEM.content}, *messages(answer())["messages"]]},
        (SYSTEM, QUESTION),
    ),
    "a named user": (
        {"messages": [{"role": "user", "content": "How much?", "name": "ann"}, answer()]},
        (Turn("user", "How much?", '{"name": "ann"}'),),
    ),
}


@pytest.mark.parametrize("name", CHATS)
def test_chats_of_every_shape_are_read(tmp_path: Path, name: str) -> None:
    row, expected = CHATS[name]
    if isinstance(expected, str):
        assert loaded(tmp_path, row).completion == expected
    else:
        assert loaded(tmp_path, row) == Example("", "12", expected)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])},
        {"role": "assistant", "function_call": {"name": "price", "arguments": '{"item": "pot"}'}},
        {"from": "function_call", "value": '{"name": "price", "arguments": {"item": "pot"}}'},
        {"role": "tool_call", "content": '[{"name": "price", "arguments": {"item": "pot"}}]'},
    ],
)
@pytest.mark.parametrize("tools", [[TOOL], [FUNCTION], json.dumps([FUNCTION]), [json.dumps(TOOL)]])
def test_calls_and_tools_of_every_shape_are_read(tmp_path: Path, turn: dict[str, Any], tools: Any) -> None:
    row = messages(turn, {"role": "tool", "tool_call_id": "1", "content": "12"}, answer(), tools=tools)
    example = loaded(tmp_path, row)
    assert example.turns[1] == Turn("assistant", "", CALLED)
    assert example.turns[2] == Turn("tool", "12", '{"tool_call_id": "1"}')
    assert json.loads(example.tools) == [TOOL]
    last = loaded(tmp_path, messages(turn, tools=tools))
    assert (last.completion, last.answer_fields) == ("", CALLED)


@pytest.mark.parametrize("role", ["observation", "tool", "function_response", "tool_response"])
def test_tool_results_are_turns_of_the_tool(tmp_path: Path, role: str) -> None:
    turns = [
        {"from": "human", "value": "How much?"},
        {"from": role, "value": "12"},
        {"from": "gpt", "value": "a"},
    ]
    assert loaded(tmp_path, {"conversations": turns}).turns == (QUESTION, Turn("tool", "12"))


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_read_under_each_of_its_names(tmp_path: Path, key: str) -> None:
    example = loaded(tmp_path, messages(answer(**{key: "It is clay."})))
    assert example.answer_fields == '{"reasoning_content": "It is clay."}'
    assert loaded(tmp_path, messages(answer(**{key: "x"})), ignored=(key,)) == Example("", "12", (QUESTION,))


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        (
            messages(answer([{"type": "image_url", "image_url": {"url": "x"}}])),
            "a part of the kind image_url",
        ),
        (messages(answer([{"type": "text"}])), "a part without text"),
        (messages(answer([])), "is not a text but"),
        (messages(answer(weight=0)), "no answer that is learnt"),
        (messages(answer(weight=0.5)), "weight is 0.5, and an answer is learnt"),
        (messages(answer(tool_calls=[{"function": {}}])), "tool_calls is not a call"),
        (messages(answer(), tools="price"), "is not a list of tools"),
        (messages(answer(), tools=[{"type": "function"}]), "a tool without a name"),
        (messages(answer(reasoning="a", thinking="b")), "is another text than that of"),
        ({**ALPACA, "history": [["a"]]}, "is not a list of pairs"),
        ({**ALPACA, "history": [["a", " "]]}, "is not a list of pairs"),
        ({**ALPACA, "history": ["a", "b"]}, "is not a list of pairs"),
        (
            {
                "messages": [{"role": "system", "content": "a"}, *messages(answer())["messages"]],
                "system": "b",
            },
            "not the",
        ),
        (
            {"conversations": [{"from": "critic", "value": "a"}, {"from": "gpt", "value": "b"}]},
            "'critic', and only",
        ),
        ({"messages": None}, "those of no format"),
    ],
)
def test_unlearnable_chats_are_refused(tmp_path: Path, row: dict[str, Any], fact: str) -> None:
    with pytest.raises(DataInvalid, match=fact):
        loaded(tmp_path, row)


def test_example_digest_covers_all_learnt_content(tmp_path: Path) -> None:
    rows = [
        messages(answer()),
        messages(answer(), tools=[TOOL]),
        messages(answer(tool_calls=[CALL])),
        messages(answer(reasoning="a")),
        messages(answer(), {"role": "user", "content": "Sure?"}, answer()),
        messages(answer(weight=0), {"role": "user", "content": "Sure?"}, answer()),
        messages(answer(), system="You sell pots."),
    ]
    examples = [loaded(tmp_path, row) for row in rows]
    assert len({example.key for example in examples}) == len(set(examples)) == len(rows)
    plain = Example("", "12", (QUESTION,))
    assert examples[0].key == plain.key
    assert plain.key.startswith("ff5c91edec9f8d40")  # the digest decides who is held out
