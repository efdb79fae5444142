"""Describe the faults of a message for people: paths of its own fields, and a sentence for each. Pure.

No description repeats the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import isclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

Fault = tuple[str, str]
"""The path of a field, such as `training.learning_rate`, and what is wrong with it."""

MOST_FAULTS = 20
"""The number of faults that are listed; larger numbers are counted."""
_PREFIXES = ("Value error, ", "Assertion failed, ")
_PARSING = re.compile(r", unable to parse string as an? \w+$")
_EXPECTED = re.compile(r"Input should be (?:a valid )?")
# What pydantic adds to a location for a member of a union or for a validator, where no class is known.
_BRANCH = re.compile(
    r".*[\[(].*|constrained-.*|(?:json-)?(?:none|str|int|float|bool|bytes|list|tuple|dict|url)"
)


def complaints(error: ValidationError, message: type[BaseModel] | None, noun: str = "field") -> str:
    """Return the faults of a message in one line, each with the path of its field; of many the first."""
    faults = faults_of(error.errors(include_input=False, include_url=False), message, noun)
    texts = [f"{path}: {text}" if path else text for path, text in faults[:MOST_FAULTS]]
    remaining = len(faults) - len(texts)
    return "; ".join([*texts, *([f"and {remaining} more"] if remaining else [])])


def faults_of(
    errors: Sequence[Mapping[str, Any]], message: type[BaseModel] | None, noun: str = "field"
) -> list[Fault]:
    """Return each field with what is wrong with it, in the order of pydantic's errors.

    Faults of one field, such as those of each member of a union, are joined.

    Args:
        errors: the errors of a `ValidationError`.
        message: the class of the whole message, whose fields the paths name; None = not known.
        noun: the word for a field, such as `option`.
    """
    texts: dict[str, list[str]] = {}
    for error in errors:
        path, table = _path(error, message)
        text = _sentence(error, path, table, noun)
        listed = texts.setdefault(".".join(path), [])
        # The members of a union often have the same fault.
        if text not in listed:
            listed.append(text)
    return [(path, _joined(listed)) for path, listed in texts.items()]


def _joined(texts: Sequence[str]) -> str:
    """Return one sentence for the faults of a field; the members of a union become a choice."""
    if len(texts) > 1 and all(_EXPECTED.match(text) for text in texts):
        return f"{texts[0]}, or {' or '.join(_EXPECTED.sub('', text, 1) for text in texts[1:])}"
    return "; ".join(texts)


def _sentence(error: Mapping[str, Any], path: Sequence[str], table: object, noun: str) -> str:
    if error["type"] == "missing":
        return "missing; add it"
    if error["type"] == "extra_forbidden":
        names = [name for kind in _classes(table) for name in kind.model_fields]
        near = get_close_matches(path[-1], names, n=1) if path else []
        return f"there is no such {noun}{f'; did you mean {near[0]}?' if near else ''}"
    text = str(error["msg"])
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return _PARSING.sub("", text).replace("a valid tuple", "a valid list")


def _path(error: Mapping[str, Any], message: type[BaseModel] | None) -> tuple[list[str], object]:
    """Return the path of an error's field, and the type of the table that it is in.

    Names of members of unions and of validators, which pydantic puts into locations, are left out.
    """
    location: Sequence[str | int] = error["loc"]
    path: list[str] = []
    annotation: object = message
    table: object = message
    for position, part in enumerate(location, 1):
        is_unknown_field = position == len(location) and error["type"] in ("extra_forbidden", "missing")
        inner = _inner(annotation, part)
        # Pydantic puts members of unions and validators into locations; people look for fields.
        if inner is None and not is_unknown_field and _is_branch(annotation, part):
            continue
        path.append(str(part))
        table, annotation = annotation, inner
    return path, table


def _is_branch(annotation: object, part: str | int) -> bool:
    """Whether a part of a location names a branch of a union, and not a key of the input."""
    if isinstance(part, int) or "." in part:
        return False
    return annotation not in (None, Any) or _BRANCH.fullmatch(part) is not None


def _inner(annotation: object, part: str | int) -> object:
    """Return the type of a field, an item or a value of `annotation`; None = no field has this name."""
    for member in _members(annotation):
        if isclass(member) and issubclass(member, BaseModel):
            field = member.model_fields.get(str(part))
            if field is not None:
                return field.annotation if field.annotation is not None else Any
            continue
        origin, arguments = get_origin(member), get_args(member)
        if not (isclass(origin) and arguments):
            continue
        if issubclass(origin, Mapping):
            if isinstance(part, str) and not _BRANCH.fullmatch(part):
                return arguments[-1]
        elif isinstance(part, int) and issubclass(origin, Sequence | set | frozenset):
            place = part if origin is tuple and len(arguments) > part and Ellipsis not in arguments else 0
            return arguments[place]
    return None


def _members(annotation: object) -> Iterator[object]:
    """Yield the types that a value may have: the members of unions, without annotations."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for argument in get_args(annotation):
            yield from _members(argument)
    elif annotation is not None and annotation is not type(None):
        yield annotation


def _classes(annotation: object) -> Iterator[type[BaseModel]]:
    for member in _members(annotation):
        if isclass(member) and issubclass(member, BaseModel):
            yield member
