"""Describe the faults of a message, and name the field that was meant by an unknown one. Pure.

No description repeats the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import isclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def complaints(error: ValidationError, message: type[BaseModel], noun: str = "field") -> str:
    """Return the faults of a message in one line, each with the path of its field."""
    return "; ".join(
        f"{'.'.join(map(str, fault['loc']))}: {complaint(fault, message, noun)}" for fault in error.errors()
    )


def complaint(fault: Mapping[str, Any], message: type[BaseModel] | None, noun: str = "field") -> str:
    """Return the fault of one field.

    Args:
        message: the class of the whole message, with whose fields an unknown one is compared; None = none.
        noun: the word for a field, such as `option`.
    """
    if fault["type"] == "missing":
        return "missing; add it"
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"]).removeprefix("Value error, ")
    path: Sequence[str | int] = fault["loc"]
    table = _table(message, path[:-1])
    near = get_close_matches(str(path[-1]), table.model_fields, n=1) if table is not None else []
    return f"there is no such {noun}{f'; did you mean {near[0]}?' if near else ''}"


def _table(message: type[BaseModel] | None, path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the class of the message at a path inside another one; None if it is not known."""
    for name in (part for part in path if isinstance(part, str)):
        field = message.model_fields.get(name) if message is not None else None
        message = next(_classes(field.annotation), None) if field is not None else None
    return message


def _classes(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the classes of messages in an annotation, such as `list[Silo] | None`."""
    if isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes(argument)
