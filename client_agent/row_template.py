"""The silo's own template: a prompt and an answer with columns in braces, and the options of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from schemas.messages.base import Strict, field_error

OWN_TEMPLATE = "template"
"""What rows of such a template are called where others have the name of their format."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_BRACES = "write {column} for a column, and {{ or }} for a brace of the text"
_TABLE = 'options = { 1 = "first", 2 = "second" }'
_FEWEST_OPTIONS = 2
_SHOWN = 12

Options = tuple[str, ...] | tuple[tuple[str, str], ...]


class RowTemplate(Strict):
    """How a row becomes a prompt and an answer; `{name}` is a column's value, `{a.b}` that of a key in it.

    Nothing of a value is evaluated, and a brace of the text itself is doubled.
    """

    prompt: str
    """The text before the answer; its placeholders are columns."""
    answer: str
    """The learnt answer: one placeholder with `options`, else any text with placeholders."""
    options: Options | None = None
    """The possible answers: a list, looked up by an index from 0 or taken as they are, or a table
    `{ value = "answer" }`, whose values the column has; without options the answer is free text.
    """

    @model_validator(mode="before")
    @classmethod
    def _is_a_table(cls, value: object) -> object:
        if isinstance(value, str):
            raise PydanticCustomError(
                "wrong",
                "is a table with prompt and answer, and perhaps options; the name of a built-in template "
                "belongs to format",
            )
        if not isinstance(value, Mapping):
            return value
        if "metrics" in value or "metric" in value:
            raise PydanticCustomError(
                "wrong", 'has no metrics of its own; write metrics = ["f1"] beside the template'
            )
        options = value.get("options")
        # Pairs keep the order of the file, and can be hashed.
        return {**value, "options": list(options.items())} if isinstance(options, Mapping) else value

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        for field, text in (("prompt", self.prompt), ("answer", self.answer)):
            try:
                columns = columns_of(text)
            except ValueError as error:
                raise field_error(str(error), field) from error
            if not columns:
                raise field_error(
                    f"is the same for every row; name a column in braces: {_example(field)}", field
                )
        if self.options is not None:
            self._has_options(self.options)
        return self

    def _has_options(self, options: Options) -> None:
        answers = columns_of(self.answer)
        if _literals(self.answer).strip() or len(answers) != 1:
            raise field_error("must be one column in braces and nothing else if there are options", "answer")
        # The model would copy the answer, and score perfectly without learning.
        if answers[0] in columns_of(self.prompt):
            raise field_error(f"shows the answer: it has {{{answers[0]}}} too", "prompt")
        fault = _fault_of(options)
        if fault is not None:
            raise field_error(fault, "options")

    @property
    def answer_column(self) -> str:
        """The first column of the answer, which is the only one if there are options."""
        return columns_of(self.answer)[0]

    @property
    def texts(self) -> tuple[str, ...]:
        """The different answers, in the order of `options`."""
        return tuple(dict.fromkeys(pair[1] for pair in self.pairs))

    @property
    def is_table(self) -> bool:
        """Whether options name the values that they stand for."""
        return any(not isinstance(option, str) for option in self.options or ())

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every value of the answer's column with its answer; those of a list are indices."""
        return tuple(
            (str(index), option.strip())
            if isinstance(option, str)
            else (option[0].strip(), option[1].strip())
            for index, option in enumerate(self.options or ())
        )


def require_no_names(format_name: str | None, columns: Iterable[object]) -> None:
    """Raise if a template stands beside a format or names of columns, which it replaces.

    Raises:
        ValidationError: it does; the message says which to leave out.
    """
    if format_name is not None:
        raise field_error(
            f"says what a row is, and so does format = {format_name!r}; leave one out", OWN_TEMPLATE
        )
    if tuple(columns):
        raise field_error("names the columns of the data in its braces; leave columns out", OWN_TEMPLATE)


@cache
def parts_of(text: str) -> tuple[tuple[str, str | None], ...]:
    """Return (text, column behind it) of a template, in order; None = there is none behind the last text.

    Raises:
        ValueError: a brace has no partner, or a placeholder is empty.
    """
    parts: list[tuple[str, str | None]] = []
    literal, position = "", 0
    for token in _TOKEN.finditer(text):
        literal += text[position : token.start()]
        position = token.end()
        name = token[1]
        if token[0] in ("{{", "}}"):
            literal += token[0][0]
        elif name is None:
            place = text[max(0, position - _SHOWN) : position + _SHOWN]
            raise ValueError(f"has a lone {token[0]} in {place!r}; {_BRACES}")
        elif not name.strip():
            raise ValueError(f"has an empty {token[0]}; {_BRACES}")
        else:
            parts.append((literal, name.strip()))
            literal = ""
    parts.append((literal + text[position:], None))
    return tuple(parts)


def columns_of(text: str) -> tuple[str, ...]:
    """Return the columns that a template's text names.

    Raises:
        ValueError: see `parts_of`.
    """
    return tuple(column for _, column in parts_of(text) if column is not None)


def _literals(text: str) -> str:
    return "".join(literal for literal, _ in parts_of(text))


def _example(field: str) -> str:
    return '"Question: {text}\\nAnswer:"' if field == "prompt" else '"{label}"'


def _fault_of(options: Options) -> str | None:
    """Return what is wrong with options, and what to do; None = nothing."""
    texts = [option if isinstance(option, str) else option[1] for option in options]
    values = [option[0] for option in options if not isinstance(option, str)]
    if any(not text.strip() for text in texts):
        return "has an empty answer"
    different = list(dict.fromkeys(text.strip() for text in texts))
    if len(different) < _FEWEST_OPTIONS:
        return "needs two different answers or more; leave options out for free text"
    repeated = _repeated(different if values else [text.strip() for text in texts]) or _repeated(values)
    if repeated is not None:
        return f"has {repeated!r} twice; answers and values differ in more than case"
    if not values and any(_is_another_index(text.strip(), index) for index, text in enumerate(texts)):
        return f"has numbers that may be indices or answers; write which value stands for which: {_TABLE}"
    return None


def _repeated(texts: Sequence[str]) -> str | None:
    """Return a text that is there twice, whatever its case; None = there is none."""
    folded = [text.strip().casefold() for text in texts]
    return next((text for index, text in enumerate(texts) if folded[index] in folded[:index]), None)


def _is_another_index(text: str, index: int) -> bool:
    # Options such as 1 to 5 at indices 0 to 4: a column of numbers could mean either.
    return text.lstrip("+-").isdecimal() and text != str(index)
