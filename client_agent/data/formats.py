"""What a row is: a chat, an instruction, a prompt with its completion, or plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from client_agent.data.row import Row
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example, Turn

Format = Callable[[Iterable[Row]], Iterator[Example]]
"""Turns rows into examples, perhaps several rows into one."""

_ROLE_OF_SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}
_SEPARATOR = "\n\n"


def per_row(example_of: Callable[[Row], Example]) -> Format:
    """Return a format that makes one example of every row."""

    def examples(rows: Iterable[Row]) -> Iterator[Example]:
        for row in rows:
            yield example_of(row)

    return examples


def prompt_completion(row: Row) -> Example:
    """Columns `prompt` and `completion`."""
    return Example(row.text("prompt"), row.text("completion"))


def messages(row: Row) -> Example:
    """A column `messages` of objects with `role` and `content`; every turn of the assistant is learnt."""
    turns = [Turn(turn.text("role"), turn.text("content")) for turn in row.objects("messages")]
    return _chat(row, turns, "messages")


def sharegpt(row: Row) -> Example:
    """A column `conversations` of objects with `from` (system, human, gpt) and `value`; as `messages`."""
    turns = []
    for turn in row.objects("conversations"):
        role = turn.text("from")
        if role not in _ROLE_OF_SHAREGPT:
            raise turn.invalid("from", f"is {role!r}, and only {', '.join(_ROLE_OF_SHAREGPT)} are roles")
        turns.append(Turn(_ROLE_OF_SHAREGPT[role], turn.text("value")))
    return _chat(row, turns, "conversations")


def alpaca(row: Row) -> Example:
    """Columns `instruction`, `output` and, perhaps empty, `input`."""
    instruction = row.text("instruction")
    context = (row.value("input") or "") if row.has(["input"]) else ""
    if not isinstance(context, str):
        raise row.invalid("input", "is no text")
    prompt = _SEPARATOR.join(filter(None, (instruction, context)))
    return Example(prompt + _SEPARATOR, row.text("output"))


def text(row: Row) -> Example:
    """A column `text`, all of which is learnt, in pieces if it is long."""
    return Example("", row.text("text"))


def _chat(row: Row, turns: list[Turn], column: str) -> Example:
    if len(turns) < 2 or turns[-1].role != "assistant":
        raise row.invalid(column, "does not end with an assistant's answer to a message before it")
    return Example("", turns[-1].content, tuple(turns[:-1]), place=row.place)


ROW_FORMATS: dict[str, Callable[[Row], Example]] = {
    "prompt_completion": prompt_completion,
    "messages": messages,
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "text": text,
}
_COLUMNS_OF = {
    "messages": {"messages"},
    "prompt_completion": {"prompt", "completion"},
    "sharegpt": {"conversations"},
    "alpaca": {"instruction", "output"},
    "text": {"text"},
}


def detected(row: Row) -> str:
    """Return the name of the format whose columns a row has.

    Raises:
        DataInvalid: it has those of none.
    """
    for name, columns in _COLUMNS_OF.items():
        if row.has(columns):
            return name
    listed = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in _COLUMNS_OF.items())
    raise DataInvalid(
        f"{row.place}: the columns {', '.join(map(str, row.columns))} are those of no format ({listed}); "
        "set format (--format) to a task template, or map columns: --column prompt=question of `agent init`, "
        "columns in silo.toml"
    )
