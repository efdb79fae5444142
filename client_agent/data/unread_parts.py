"""The parts of a row that a format does not read: ignored, reported, or refused where they matter."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from client_agent.data.formats import COLUMNS_OF
from client_agent.data.mapping import written_columns
from client_agent.data.printable import printable
from client_agent.data.row import Row
from client_agent.errors import DataInvalid
from client_agent.row_template import OWN_TEMPLATE

_HARMLESS = frozenset(
    (
        "id",
        "idx",
        "index",
        "uuid",
        "guid",
        "__index_level_0__",
        "hash",
        "source",
        "dataset",
        "url",
        "license",
        "lang",
        "language",
        "date",
        "timestamp",
        "created",
        "created_at",
        "updated_at",
        "parallel_tool_calls",
    )
)
_PREFERENCES = (
    "rows with a label of true and false, or with rejected answers, are preferences: keep those that are "
    "true, without the column"
)
_CLASS = (
    "a class is learnt as an answer: write a template with options in silo.toml (--template, --answer and "
    "--options of `agent init`), or set format to a built-in task template"
)
_LABELS = ("label", "labels", "kto_tag")
_MEDIA = "only text is learnt: leave such rows out"
_TURN = "write it in the content of the turn, or as a turn of its own"
_REMEDIES = {
    **dict.fromkeys((*_LABELS, "rejected", "chosen"), _PREFERENCES),
    **dict.fromkeys(("preferred_output", "non_preferred_output"), _PREFERENCES),
    **dict.fromkeys(
        ("system", "system_prompt", "system_message"),
        "write it in the prompt, or in a system turn of a chat in a column messages",
    ),
    **dict.fromkeys(
        ("tools", "functions", "function_calls"),
        "write tools as a column tools beside a chat in a column messages",
    ),
    **dict.fromkeys(("tool_calls", "function_call"), "calls belong to the assistant's turns of a chat"),
    "history": "write it as turns of a chat in a column messages",
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking", "reasoning_details"), _TURN),
    "refusal": _TURN,
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), _MEDIA),
    "suffix": "text after the answer is not read: write it in the prompt",
    "documents": "write them in the prompt",
    "chat_template_kwargs": "set chat_template to a .jinja file that has these values, and ignore the column",
    **dict.fromkeys(("weight", "mask", "loss_mask"), "every row counts once: leave rows out, or repeat them"),
}
"""Columns and keys that change what is learnt, and what to do where a format does not read them."""
_OTHER_NAMES = {
    **dict.fromkeys(("system_prompt", "system_message"), "system"),
    "functions": "tools",
    "context": "input",
}
"""Columns that a format reads by another name, if it reads that name and the row has no such column."""
_READ_BY = {
    "messages": {"system", "tools", "functions"},
    "sharegpt": {"system", "tools", "functions"},
    "alpaca": {"input", "system", "history", "tools", "functions"},
    "prompt_completion": {"system", "history", "tools", "functions"},
}
"""The optional columns of each format, read in addition to `COLUMNS_OF`."""


@dataclass(frozen=True, slots=True)
class UnreadParts:
    """The parts of the rows of a source that are not read.

    Attributes:
        columns: columns and keys of objects in them, such as `messages.mood`, in order of name.
        formats: (format of rows, another format whose columns the rows have too).
        flags: (column of true or false, a value that occurs in it).
    """

    columns: frozenset[str] = frozenset()
    formats: frozenset[tuple[str, str]] = frozenset()
    flags: frozenset[tuple[str, bool]] = frozenset()

    def __or__(self, parts: UnreadParts) -> UnreadParts:
        return UnreadParts(
            self.columns | parts.columns, self.formats | parts.formats, self.flags | parts.flags
        )

    def sentences(self) -> list[str]:
        """Return a line for each part that is not read; empty = none."""
        lines = []
        if self.columns:
            lines.append(printable(f"not used: {', '.join(sorted(self.columns))}"))
        for row_format in sorted({row_format for row_format, _ in self.formats}):
            other_formats = [name for read_as, name in sorted(self.formats) if read_as == row_format]
            lines.append(
                f"rows are read as {row_format}, and have the columns of {' and '.join(other_formats)} too; "
                "set format to choose"
            )
        return lines


ALL_USED = UnreadParts()


def unused_of(row: Row, row_format: str) -> UnreadParts:
    """Return the parts of a row that a format has not read.

    Raises:
        DataInvalid: an unread column changes what is learnt; the message says what to do.
    """
    other_formats = _other_formats(row, row_format)
    read_by_others = {
        column for name in other_formats for column in COLUMNS_OF[name] | _READ_BY.get(name, set())
    }
    columns, flags = set(), set()
    refused: dict[str, tuple[str, str]] = {}
    for name, value in row.unread():
        key = name.rpartition(".")[2]
        remedy = _remedy(row, row_format, name, value)
        if _is_neutral(key, value):
            continue
        if remedy is not None and name not in read_by_others:
            refused.setdefault(key, (name, remedy))
            continue
        if key not in _HARMLESS and not key.endswith("_id"):
            columns.add(name)
            if (
                (flag := _flag(value)) is not None
                and row_format != OWN_TEMPLATE
                and name not in read_by_others
            ):
                flags.add((name, flag))
    if refused:
        name, remedy = next(iter(refused.values()))
        raise _refused(f"{row.place}: column {name} changes what is learnt", row.ignored, refused, remedy)
    return UnreadParts(
        frozenset(columns), frozenset((row_format, name) for name in other_formats), frozenset(flags)
    )


def refuse_mixed_flags(source: str, unused: UnreadParts, ignored: Iterable[str] = ()) -> None:
    """Raise if an unread column has true in some rows of a source and false in others.

    Such a column, whatever its name (`is_good`, `accepted`), probably marks bad rows, which would be learnt
    too.

    Raises:
        DataInvalid: a column does; the message says what to do.
    """
    for name, value in sorted(unused.flags):
        if value and (name, False) in unused.flags:
            raise _refused(
                f"{source}: column {name} is true in some rows and false in others, which may change what is "
                "learnt",
                ignored,
                [name.rpartition(".")[2]],
                _PREFERENCES,
            )


def _refused(fact: str, ignored: Iterable[str], keys: Iterable[str], remedy: str) -> DataInvalid:
    """Return the error about an unread column, with the setting that ignores all such columns."""
    listed = json.dumps([*sorted(ignored), *keys], ensure_ascii=False)
    options = " ".join(f"--ignore {key}" for key in keys)
    return DataInvalid(
        printable(
            f"{fact}, and is not read; {remedy}; or set ignore_columns = {listed} in silo.toml to train "
            f"without it ({options} of `agent init`)"
        )
    )


def _flag(value: object) -> bool | None:
    """Return the value of a column that is true or false; a CSV file has it as text."""
    return {"true": True, "false": False}.get(str(value).strip().lower())


def _remedy(row: Row, row_format: str, name: str, value: object) -> str | None:
    """Return the remedy for an unread column that changes what is learnt; None if it changes nothing."""
    key = name.rpartition(".")[2]
    if row_format == OWN_TEMPLATE:
        return None  # an own template names its columns: all others are ignored on purpose
    if key in _LABELS and not isinstance(value, bool) and str(value).lower() not in ("true", "false"):
        return _CLASS
    if row_format == "prompt_completion" and name in ("input", "context"):
        return f"write it in the prompt{_as_alpaca(row, name)}"
    if row_format == "alpaca" and name == "context" and row.has(["input"]):
        return "write it in the column input"
    remedy = _REMEDIES.get(key)
    format_name = _OTHER_NAMES.get(name, "")
    is_free = format_name in _READ_BY.get(row_format, ()) and not row.has([format_name])
    if is_free and (remedy is not None or row_format == "alpaca"):
        return f"map it: {written_columns({**row.names, format_name: name})}"
    return remedy


def _as_alpaca(row: Row, name: str) -> str:
    """Return the setting that reads a prompt, its completion and an input; empty if they are no texts."""
    instruction, output = (row.names.get(column, column) for column in ("prompt", "completion"))
    if not all(isinstance(row.columns[column], str) for column in (instruction, output, name)):
        return ""
    columns = {key: column for key, column in row.names.items() if key not in ("prompt", "completion")}
    columns |= {"instruction": instruction, "output": output} | ({"input": name} if name != "input" else {})
    return f', or set format = "alpaca" and {written_columns(columns)}'


def _other_formats(row: Row, row_format: str) -> list[str]:
    """Return the other formats whose columns a row has, in columns that its own format does not read."""
    if row_format not in COLUMNS_OF:
        return []
    own_columns = _named(row, COLUMNS_OF[row_format])
    return [
        name
        for name, columns in COLUMNS_OF.items()
        if name != row_format and row.has(columns) and not _named(row, columns) & own_columns
    ]


def _named(row: Row, columns: Iterable[str]) -> set[str]:
    return {row.names.get(column, column) for column in columns}


def _is_neutral(key: str, value: object) -> bool:
    """Whether a value changes nothing: a row without a weight has weight 1 too."""
    return key == "weight" and value == 1
