"""Rows by the silo's own template (`client_agent.row_template`)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import partial

from client_agent.data.formats import Format, per_row
from client_agent.data.multiple_choice import question_with_options
from client_agent.data.printable import is_blank
from client_agent.data.row import Row, shown
from client_agent.model.examples import Example
from client_agent.row_template import RowTemplate, columns_of, parts_of


def by_template(template: RowTemplate) -> Format:
    """Return the format of a template: with options a question that is scored by them, else free text."""
    return per_row(partial(_example, template))


def _example(template: RowTemplate, row: Row) -> Example:
    # A space is part of the token after it, so that it begins the answer and does not end the prompt.
    prompt = _filled(row, template.prompt).rstrip(" ")
    gap = _gap(prompt)
    if template.options is not None:
        texts = template.texts
        options = [gap + text for text in texts]
        return question_with_options(prompt, options, texts.index(_option(row, template)))
    answers = _answers(row, template)
    return Example(prompt, gap + answers[0], references=answers, metrics=("exact_match",))


def _gap(prompt: str) -> str:
    """Return the separator of prompt and answer: a space, or nothing after a break or a wide character."""
    last = prompt[-1:]
    return "" if last.isspace() or unicodedata.east_asian_width(last or " ") in "WF" else " "


def _filled(row: Row, text: str) -> str:
    """Return a template's text with the values of a row; white space behind a value is left out."""
    filled = ""
    for literal, column in parts_of(text):
        filled += literal
        if column is not None:
            filled += _written(row, column, row.value(column))
    return filled


def _written(row: Row, column: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        remedy = (
            "name a key of it by a dot" if isinstance(value, dict) else "write it as one text in the data"
        )
        raise row.invalid(column, f"is not a text but {shown(value)}; {remedy}")
    if is_blank(value):
        raise row.invalid(column, "is empty; set skip_bad_rows = true to leave such rows out")
    return value.rstrip()


def _answers(row: Row, template: RowTemplate) -> tuple[str, ...]:
    """Return the right answers, of which the first is learnt; a column may hold a list of them."""
    columns = columns_of(template.answer)
    if len(columns) == 1:
        value = row.value(columns[0])
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            prefix, suffix = (literal for literal, _ in parts_of(template.answer))
            texts = (prefix + _written(row, columns[0], entry) + suffix for entry in value)
            return tuple(dict.fromkeys(texts))
    return (_filled(row, template.answer),)


def _option(row: Row, template: RowTemplate) -> str:
    """Return the answer that the value of the answer's column stands for.

    Raises:
        DataInvalid: there is no value, or it is neither one of the options nor an index of one.
    """
    column = template.answer_column
    value = row.value(column)
    text = _written(row, column, int(value) if isinstance(value, float) and value.is_integer() else value)
    text = text.strip().casefold()
    by_name = {answer.casefold(): answer for answer in template.texts}
    by_value = {name.casefold(): answer for name, answer in template.pairs}
    answer = by_value.get(text) if template.is_table else by_name.get(text) or by_value.get(text)
    if answer is None:
        raise row.invalid(column, _unlisted(value, template))
    return answer


def _unlisted(value: object, template: RowTemplate) -> str:
    """Return the message about a value that stands for no option, with a remedy."""
    if template.is_table:
        listed = ", ".join(name for name, _ in template.pairs)
        return f"is {shown(value)}, and options names the values {listed}; add it, or leave such rows out"
    last = len(template.texts) - 1
    fact = f"is {shown(value)}, neither an option ({', '.join(template.texts)}) nor an index from 0 to {last}"
    key = shown(str(value).lower() if isinstance(value, bool) else str(value))
    table = f'options = {{ {key} = "{template.texts[-1]}" }}'
    return f"{fact}; add the missing answer, or write which value stands for which: {table}"
