"""Suggest which columns of a row are a prompt and its answer, where they have names of their own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from client_agent.data.printable import is_blank, printable
from client_agent.data.row import Row
from client_agent.errors import DataInvalid

_PROMPTS = ("prompt", "question", "query", "instruction", "problem", "input", "user", "human", "ask", "title")
_ANSWERS = (
    "completion",
    "answer",
    "response",
    "output",
    "target",
    "reply",
    "solution",
    "assistant",
    "bot",
    "summary",
)
_CONTEXTS = ("input", "context", "passage")
_CHOSEN = ("chosen", "preferred_output")
_REJECTED = ("rejected", "non_preferred_output")
_TURN_KEYS = ({"role", "content"}, {"from", "value"})


def unknown_columns(row: Row, formats: Mapping[str, AbstractSet[str]]) -> DataInvalid:
    """Return the error that a row has the columns of no format, with the mapping that would suit it."""
    listed = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in formats.items())
    names = ", ".join(map(str, row.columns))
    fact = f"{row.place}: the columns {names} are those of no format ({listed}); "
    chosen = next((name for name in _CHOSEN if row.has([name])), None)
    suggested = _suggested(row, chosen)
    pairs = ", ".join(f"{name} = {json.dumps(c, ensure_ascii=False)}" for name, c in suggested.items())
    options = " ".join(f"--column {shlex.quote(f'{name}={c}')}" for name, c in suggested.items())
    if chosen is not None:
        rejected = [name for name in _REJECTED if row.has([name])]
        fact += (
            f"rows with {chosen} are preferences, which are not learnt; to learn the preferred answers, "
            f"write columns = {{ {pairs} }} and ignore_columns = {json.dumps(rejected)} in silo.toml"
        )
    elif suggested:
        fact += f"write columns = {{ {pairs} }} in silo.toml ({options} of `agent init`)"
        fact += ", or set format (--format) to a task template"
    else:
        fact += (
            "set format (--format) to a task template, map columns (--column prompt=question of "
            "`agent init`, columns in silo.toml), or write a template of your own (--template, template)"
        )
    return DataInvalid(printable(fact))


def _suggested(row: Row, chosen: str | None) -> dict[str, str]:
    """Return (name that a format expects -> column of the row); empty = nothing suits."""
    usable = {name: value for name, value in row.columns.items() if row.has([name])}
    chats = [name for name, value in usable.items() if _is_chat(value)]
    if chosen in chats:
        return {"messages": chosen}
    if len(chats) == 1:
        return {"messages": chats[0]}
    texts = [name for name, value in usable.items() if isinstance(value, str) and not is_blank(value)]
    answer = chosen or _first(_ANSWERS, texts)
    if answer is not None and "instruction" in texts:
        context = _first(_CONTEXTS, [name for name in texts if name != answer])
        return _renamed({"output": answer} | ({"input": context} if context is not None else {}))
    prompt = _first(_PROMPTS, [name for name in texts if name != answer])
    if prompt is None and answer is None and len(texts) == 2:
        prompt, answer = texts
    if len(texts) == 2 and (prompt is None) != (answer is None):
        prompt, answer = (
            prompt or next(t for t in texts if t != answer),
            answer or next(t for t in texts if t != prompt),
        )
    return (
        _renamed({"prompt": prompt, "completion": answer})
        if prompt is not None and answer is not None
        else {}
    )


def _renamed(columns: Mapping[str, str]) -> dict[str, str]:
    return {name: column for name, column in columns.items() if name != column}


def _first(names: Iterable[str], columns: Sequence[str]) -> str | None:
    """Return the column with the first of these names, whatever its case."""
    by_name = {column.lower(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _is_chat(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return all(
        isinstance(turn, Mapping) and any(keys <= turn.keys() for keys in _TURN_KEYS) for turn in value
    )
