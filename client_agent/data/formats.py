"""The formats of a row: a chat, an instruction, a prompt with its completion, or plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from client_agent.data.mapping import unknown_columns
from client_agent.data.printable import is_blank
from client_agent.data.row import Row, shown
from client_agent.data.turns import tools_of, turns_of
from client_agent.model.chat import ASSISTANT
from client_agent.model.examples import Example, Turn

Format = Callable[[Iterable[Row]], Iterator[Example]]
"""Turns rows into examples, perhaps several rows into one."""

_SEPARATOR = "\n\n"


def per_row(example_of: Callable[[Row], Example]) -> Format:
    """Return a format that makes one example of every row."""

    def examples(rows: Iterable[Row]) -> Iterator[Example]:
        for row in rows:
            yield example_of(row)

    return examples


def prompt_completion(row: Row) -> Example:
    """Columns `prompt` and `completion`: texts, or lists of messages; a chat with `system` or `history`."""
    if all(_is_text(row.value(column)) for column in ("prompt", "completion")):
        return _plain_or_chat(row, row.text("prompt"), "", row.text("completion"))
    prompt = _side(row, "prompt", role="user", learnt=False)
    return _chat(row, [*prompt, *_side(row, "completion", role=ASSISTANT, learnt=True)], "completion")


def messages(row: Row) -> Example:
    """A column `messages` of objects with `role` and `content`; every turn of the assistant is learnt."""
    return _chat(row, turns_of(row, "messages"), "messages")


def sharegpt(row: Row) -> Example:
    """A column `conversations` of objects with `from` (system, human, gpt) and `value`; as `messages`."""
    return _chat(row, turns_of(row, "conversations"), "conversations")


def alpaca(row: Row) -> Example:
    """Columns `instruction`, `output` and perhaps `input`; a chat with `system` or `history`."""
    instruction = row.text("instruction")
    context = row.optional("input") or ""
    if not isinstance(context, str):
        raise row.invalid("input", "is not a text")
    prompt = _SEPARATOR.join(filter(None, (instruction, context)))
    return _plain_or_chat(row, prompt, _SEPARATOR, row.text("output"))


def text(row: Row) -> Example:
    """A column `text`, all of which is learnt, in pieces if it is long."""
    return Example("", row.text("text"))


def _is_text(value: object) -> bool:
    return isinstance(value, str) or not isinstance(value, Sequence)


def _side(row: Row, column: str, *, role: str, learnt: bool) -> list[Turn]:
    """Return the turns of a prompt or a completion, which may be a text instead."""
    if _is_text(row.value(column)):
        return [Turn(role, row.text(column))]
    return turns_of(row, column, learnt=learnt)


def _plain_or_chat(row: Row, prompt: str, separator: str, answer: str) -> Example:
    """Return a prompt with its answer; a chat if the row has `system`, `history` or tools, even empty ones.

    Rows of one source are then alike, whether a conversation has turns before the prompt or not.
    """
    if not any(row.has([column]) for column in ("system", "history", "tools")):
        return Example(prompt + separator, answer)
    turns = [*_history(row), Turn("user", prompt), Turn(ASSISTANT, answer)]
    return _chat(row, turns, "completion")


def _history(row: Row) -> Iterator[Turn]:
    """Yield the turns of `history`, a list of pairs of a prompt and its answer."""
    value = row.optional("history") or []
    for pair in value if isinstance(value, Sequence) and not isinstance(value, str) else [None]:
        texts = (
            [t for t in pair if isinstance(t, str) and not is_blank(t)] if isinstance(pair, Sequence) else []
        )
        if len(texts) != 2 or texts != list(pair or ()):
            raise row.invalid("history", f"is not a list of pairs of a prompt and its answer: {shown(pair)}")
        yield Turn("user", texts[0])
        yield Turn(ASSISTANT, texts[1])


def _chat(row: Row, turns: list[Turn], column: str) -> Example:
    turns = [*_system(row, turns), *turns]
    if len(turns) < 2 or turns[-1].role != ASSISTANT:
        raise row.invalid(column, "does not end with an assistant's answer to a message before it")
    *before, answer = turns
    return Example(
        "",
        answer.content,
        tuple(before),
        place=row.place,
        tools=tools_of(row),
        answer_fields=answer.fields,
    )


def _system(row: Row, turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the system turn of a column `system`, unless the chat begins with an equal system turn.

    Raises:
        DataInvalid: the chat begins with a different system turn.
    """
    if not row.optional("system"):
        return
    content = row.text("system")
    if not turns or turns[0].role != "system":
        yield Turn("system", content)
    # Two different system prompts: either choice would be a guess.
    elif turns[0].content != content:
        raise row.invalid(
            "system", 'is not the system turn of the chat; remove one, or set ignore_columns = ["system"]'
        )


ROW_FORMATS: dict[str, Callable[[Row], Example]] = {
    "prompt_completion": prompt_completion,
    "messages": messages,
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "text": text,
}
COLUMNS_OF = {
    "messages": {"messages"},
    "prompt_completion": {"prompt", "completion"},
    "sharegpt": {"conversations"},
    "alpaca": {"instruction", "output"},
    "text": {"text"},
}
"""The columns that a row of each format has; the first format whose columns a row has is taken."""


def detected(row: Row) -> str:
    """Return the name of the format whose columns a row has.

    Raises:
        DataInvalid: the row has the columns of no format.
    """
    # `text` is the last format, since rows of others may have a column of this name too.
    for name, columns in COLUMNS_OF.items():
        if row.has(columns):
            return name
    raise unknown_columns(row, COLUMNS_OF, by_columns)


def by_columns(row: Row) -> Example:
    """Return the example of a row in the format whose columns it has.

    Raises:
        DataInvalid: the row has the columns of no format, or a value that the format does not allow.
    """
    return ROW_FORMATS[detected(row)](row)
