"""The turns of a chat in a row: roles, text, calls of tools, reasoning, and which answers are learnt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from client_agent.data.json_text import fault_of, parsed
from client_agent.data.printable import is_blank
from client_agent.data.row import Row, shown
from client_agent.model.chat import ASSISTANT, Turn

_CALL = "call"
_ROLES = {
    "developer": "system",
    "human": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bot": ASSISTANT,
    "model": ASSISTANT,
    "function_call": _CALL,
    "tool_call": _CALL,
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Roles as LLaMA-Factory, ShareGPT, ms-swift and OpenAI write them, where templates expect another name."""
_SHAREGPT_ROLES = ("system", "user", ASSISTANT, "tool", *_ROLES)
"""In any case; other roles of messages are the chat template's."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_WEIGHTS = ("weight", "train", "loss")
"""Keys of a turn that say whether an answer is learnt: OpenAI's, axolotl's and ms-swift's."""
_TOOL_KEYS = ("name", "tool_call_id")


def turns_of(row: Row, column: str, *, learnt: bool = True) -> list[Turn]:
    """Return the turns in a list of objects with `role` and `content`, or `from` and `value`.

    An assistant's turn with a weight of 0 is read and not learnt; without `learnt` none is. Turns after the
    last learnt answer are left out if weights decided so.

    Raises:
        DataInvalid: a turn has no role or content, or something that cannot be learnt.
    """
    turns = [_turn(turn, learnt=learnt) for turn in row.objects(column)]
    if learnt and any(turn.role == ASSISTANT and not turn.learnt for turn in turns):
        last = max((i for i, turn in enumerate(turns) if turn.role == ASSISTANT and turn.learnt), default=-1)
        if last < 0:
            raise row.invalid(column, "has no answer that is learnt: the weight of all of them is 0")
        # What follows the last learnt answer influences no loss and costs tokens.
        turns = turns[: last + 1]
    return turns


def _turn(row: Row, *, learnt: bool) -> Turn:
    role, key = _role(row)
    role = _ROLES.get(role, role)
    fields: dict[str, object] = {}
    if role == _CALL:
        calls, content, role = _calls(row, key, _parsed(row, key, row.value(key))), "", ASSISTANT
    else:
        calls = _calls_beside(row)
        content = _content(row, key, optional=bool(calls))
    if calls:
        fields["tool_calls"] = calls
    if reasoning := _reasoning(row):
        fields["reasoning_content"] = reasoning
    fields |= {name: row.value(name) for name in _TOOL_KEYS if row.has([name])}
    is_learnt = role != ASSISTANT or (_is_learnt(row) and learnt)
    return Turn(role, content, _json(fields) if fields else "", is_learnt)


def _role(row: Row) -> tuple[str, str]:
    """Return a turn's role, and the key of its content."""
    if row.has(["role"]) or not row.has(["from"]):
        return _folded(row.text("role")), "value" if row.has(["value"]) and not row.has(
            ["content"]
        ) else "content"
    role = _folded(row.text("from"))
    if role not in _SHAREGPT_ROLES:
        raise row.invalid("from", f"is {role!r}, and only {', '.join(_SHAREGPT_ROLES)} are roles")
    return role, "content" if row.has(["content"]) and not row.has(["value"]) else "value"


def role_named(role: str) -> str:
    """Return a role as chat templates name it."""
    folded = _folded(role)
    return _ROLES.get(folded, folded)


def _folded(role: str) -> str:
    """Return a role in lower case if it is a known one, since some exporters write `Human` and `GPT`."""
    folded = role.strip().casefold()
    return folded if folded in _SHAREGPT_ROLES else role


def _content(row: Row, key: str, *, optional: bool) -> str:
    """Return a turn's text; parts of text are joined by line breaks. `optional`: calls may stand alone."""
    value = row.optional(key) if optional else row.value(key)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = "\n".join(_part(row, key, part) for part in value)
        if not is_blank(value):
            return value
    if optional and (not value or (isinstance(value, str) and is_blank(value))):
        return ""
    return row.text(key)


def _part(row: Row, key: str, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind in _TEXT_PARTS and isinstance(text, str):
        return text
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise row.invalid(key, f"has a part of the kind {kind}, and only text is learnt; leave such rows out")
    raise row.invalid(key, f"has a part without text: {shown(part)}")


def _calls_beside(row: Row) -> list[dict[str, object]]:
    """Return the calls of an assistant's turn: `tool_calls`, or `function_call` as it was called before."""
    for key in ("tool_calls", "function_call"):
        value = _parsed(row, key, row.optional(key))
        # Columnar files and some exporters write an empty list or an empty text for no call.
        if value:
            return _calls(row, key, value)
    return []


def _calls(row: Row, key: str, value: object) -> list[dict[str, object]]:
    listed = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not listed:
        raise row.invalid(key, "has no call")
    return [_call(row, key, entry) for entry in listed]


def _call(row: Row, key: str, value: object) -> dict[str, object]:
    """Return a call as chat templates expect it: type, perhaps an id, and a function with its arguments."""
    entry = _parsed(row, key, value)
    function = entry.get("function", entry) if isinstance(entry, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name.strip():
        raise row.invalid(
            key, f'is not a call, such as {{"name": "price", "arguments": {{}}}}, but {shown(value)}'
        )
    # OpenAI writes arguments as JSON in a text, and chat templates expect the object.
    arguments = _parsed(row, key, function.get("arguments", function.get("parameters", {})))
    call: dict[str, object] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if isinstance(entry, Mapping) and isinstance(entry.get("id"), str):
        call["id"] = entry["id"]
    return call


def _reasoning(row: Row) -> str:
    texts = [row.text(key) for key in _REASONING if row.has([key]) and row.value(key) != ""]
    if len(set(texts)) > 1:
        raise row.invalid(
            _REASONING[0], f"is another text than that of {' or '.join(_REASONING[1:])}; remove one"
        )
    return texts[0] if texts else ""


def _is_learnt(row: Row) -> bool:
    weights = {key: row.value(key) for key in _WEIGHTS if row.has([key])}
    for key, value in weights.items():
        if value not in (0, 1):
            raise row.invalid(key, f"is {shown(value)}, and an answer is learnt (1) or not (0)")
    return all(weights.values())


def tools_of(row: Row) -> str:
    """Return the tools of a row as JSON, as chat templates expect them; empty = none.

    `tools` and the older `functions` are lists, or the JSON of lists, of functions or of objects around them.

    Raises:
        DataInvalid: it is something else.
    """
    for column in ("tools", "functions"):
        value = _parsed(row, column, row.optional(column))
        if value is None or value == "" or value == []:
            continue
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise row.invalid(column, f"is not a list of tools but {shown(value)}")
        return _json([_tool(row, column, entry) for entry in value])
    return ""


def _tool(row: Row, column: str, value: object) -> Mapping[str, object]:
    entry = _parsed(row, column, value)
    function = entry.get("function", entry) if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(function, Mapping) or "name" not in function:
        raise row.invalid(column, f"has a tool without a name: {shown(value)}")
    return cast(
        Mapping[str, object], entry if "function" in entry else {"type": "function", "function": entry}
    )


def _parsed(row: Row, column: str, value: object) -> object:
    """Return the value of a text that is JSON of an object or a list; other values as they are.

    Raises:
        DataInvalid: an object of it has a key twice.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        content = parsed(value)
    except (ValueError, RecursionError):
        # A text may begin with a brace and be no JSON.
        return value
    if (fault := fault_of(content)) is not None:
        raise row.invalid(column, fault)
    return content


def _json(value: object) -> str:
    # Escapes would be other tokens than the characters.
    return json.dumps(value, ensure_ascii=False)
