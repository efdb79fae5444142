"""Strict JSON for hostile input: no NaN, duplicate keys, lone surrogates or huge numbers."""

from __future__ import annotations

import json
from typing import Any, NoReturn

# The time to convert a number grows with the square of its digits.
_LONGEST_NUMBER = 40


class MalformedJson(ValueError):
    """The bytes are not strict JSON."""


def loads(text: bytes) -> object:
    """Parse UTF-8 JSON.

    Raises:
        MalformedJson: the text is invalid, or ambiguous between parsers.
    """
    try:
        value: object = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_distinct,
            parse_constant=_no_constant,
            parse_int=_short_int,
            parse_float=_short_float,
        )
        # A lone surrogate can only come from an escape; encoding the result is what finds it.
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise MalformedJson(type(error).__name__) from error
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _short_int(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("number too long")
    return int(digits)


def _short_float(digits: str) -> float:
    value = float(digits)
    if len(digits) > _LONGEST_NUMBER or value in (float("inf"), float("-inf")):
        raise ValueError("number out of range")
    return value
