"""Suggest which columns of a row are a prompt and its answer, where they have names of their own.

Only a mapping with which the row becomes an example is suggested.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from client_agent.data.printable import is_blank, printable
from client_agent.data.row import Row
from client_agent.data.turns import role_named
from client_agent.errors import DataInvalid
from client_agent.model.chat import ASSISTANT

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
_TURN_KEYS = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})


def unknown_columns(
    row: Row, formats: Mapping[str, AbstractSet[str]], read: Callable[[Row], object]
) -> DataInvalid:
    """Return the error that a row has the columns of no format, with the mapping that suits it.

    Args:
        formats: the columns of each format.
        read: makes an example of a row, by which suggestions are tried.
    """
    format_columns = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in formats.items())
    names = ", ".join(map(str, row.columns))
    fact = f"{row.place}: the columns {names} are those of no format ({format_columns}); "
    chosen = next((name for name in _CHOSEN if row.has([name])), None)
    ignored = sorted({*row.ignored, *(name for name in _REJECTED if chosen and row.has([name]))})
    trial = replace(row, ignored=frozenset(ignored))
    suggested = next((names for names in _candidates(trial, chosen) if _suits(trial, names, read)), {})
    if chosen is not None:
        fact += f"rows with {chosen} are preferences, which are not learnt; to learn the preferred answers, "
        fact += _preferred(trial, suggested, ignored, chosen)
    elif suggested:
        options = " ".join(f"--column {shlex.quote(f'{name}={c}')}" for name, c in suggested.items())
        fact += f"write {written_columns(suggested)} in silo.toml ({options} of `agent init`)"
        fact += ", or set format (--format) to a task template"
    else:
        fact += (
            "set format (--format) to a task template, map columns (--column prompt=question of "
            "`agent init`, columns in silo.toml), or write a template of your own (--template, template)"
        )
    return DataInvalid(printable(fact))


def _preferred(row: Row, suggested: Mapping[str, str], ignored: Sequence[str], chosen: str) -> str:
    """Return the settings that learn the preferred answers of a row."""
    ignore_setting = f" and ignore_columns = {json.dumps(ignored, ensure_ascii=False)}" if ignored else ""
    if suggested:
        note = ", which learns the whole text of it" if "text" in suggested else ""
        return f"write {written_columns(suggested)}{ignore_setting} in silo.toml{note}"
    mapped = f"{written_columns({'completion': chosen})}{ignore_setting} in silo.toml"
    objects = ((name, value) for name, value in row.columns.items() if isinstance(value, Mapping))
    chat_keys = [
        f"{name}.{key}" for name, value in objects for key, entry in value.items() if _is_chat(entry)
    ]
    if len(chat_keys) == 1:
        return f"write the list {chat_keys[0]} as a column prompt of the data, and {mapped}"
    return f"write what comes before the answer as a column prompt of the data, and {mapped}"


def written_columns(columns: Mapping[str, str]) -> str:
    """Return the setting `columns` of silo.toml."""
    pairs = ", ".join(f"{name} = {_quoted(column)}" for name, column in columns.items())
    return f"columns = {{ {pairs} }}"


def _quoted(column: str) -> str:
    return json.dumps(column, ensure_ascii=False)


def _suits(row: Row, columns: Mapping[str, str], read: Callable[[Row], object]) -> bool:
    """Whether a row becomes an example with these names of its columns."""
    if not columns:
        return False
    try:
        read(Row(row.place, row.columns, columns, ignored=row.ignored))
    except DataInvalid:
        return False
    return True


def _candidates(row: Row, chosen: str | None) -> Iterator[dict[str, str]]:
    """Yield mappings (name that a format expects -> column of the row), the likeliest first."""
    usable = {name: value for name, value in row.columns.items() if row.has([name])}
    chats = {name: value for name, value in usable.items() if _is_chat(value)}
    texts = [name for name, value in usable.items() if isinstance(value, str) and not is_blank(value)]
    parts = [name for name in usable if name in chats or name in texts]
    whole_chats = [name for name, value in chats.items() if _is_whole(value)]
    if chosen in whole_chats:
        yield {"messages": chosen}
    # With two chats it is unknown which one is to be learnt.
    elif len(whole_chats) == 1:
        yield {"messages": whole_chats[0]}
    answer = chosen or _first(_ANSWERS, parts) or _single(n for n, v in chats.items() if _is_answer(v))
    if answer in texts and "instruction" in texts:
        context = _first(_CONTEXTS, [name for name in texts if name != answer])
        yield _renamed({"output": answer} | ({"input": context} if context is not None else {}))
    prompt = _first(_PROMPTS, [name for name in parts if name != answer])
    # Two columns with unknown names: prompts are usually written first.
    if prompt is None and answer is None and len(parts) == 2:
        prompt, answer = parts
    if len(parts) == 2 and (prompt is None) != (answer is None):
        prompt, answer = (
            prompt or next(name for name in parts if name != answer),
            answer or next(name for name in parts if name != prompt),
        )
    if prompt is not None and answer is not None:
        yield _renamed({"prompt": prompt, "completion": answer})
    elif chosen is not None and parts == [chosen] and chosen in texts:
        yield {"text": chosen}


def _single(names: Iterator[str]) -> str | None:
    listed = list(names)
    return listed[0] if len(listed) == 1 else None


def _renamed(columns: Mapping[str, str]) -> dict[str, str]:
    return {name: column for name, column in columns.items() if name != column}


def _first(names: Iterable[str], columns: Sequence[str]) -> str | None:
    """Return the column with the first of these names, whatever its case."""
    # Reversed, so that of columns that differ in case the first one wins.
    by_name = {column.lower(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _is_chat(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return all(
        isinstance(turn, Mapping) and any(keys <= turn.keys() for keys in _TURN_KEYS) for turn in value
    )


def _roles(chat: object) -> list[str]:
    """Return the roles of a chat's turns, without those of the system."""
    turns = chat if isinstance(chat, Sequence) else ()
    roles = [role_named(str(turn.get("role", turn.get("from")))) for turn in turns]
    return [role for role in roles if role != "system"]


def _is_whole(chat: object) -> bool:
    """Whether a chat has the prompt as well as the answer to it."""
    roles = _roles(chat)
    return len(roles) > 1 and roles[0] == "user" and roles[-1] not in ("user", "tool")


def _is_answer(chat: object) -> bool:
    """Whether a chat begins with an answer, so that its prompt is elsewhere."""
    return _roles(chat)[:1] == [ASSISTANT]
