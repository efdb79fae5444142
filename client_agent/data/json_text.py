"""Parse JSON of a silo's data, and detect objects that have a key twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import cast


class RepeatedKey(dict[str, object]):
    """An object that has `key` twice, of which only the last value is left.

    Attributes:
        key: the first key that is repeated.
    """

    key: str


def parsed(text: str) -> object:
    """Parse JSON; objects with a repeated key are `RepeatedKey`.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    return cast(object, json.loads(text, object_pairs_hook=_object))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) == len(pairs):
        return content
    repeated = RepeatedKey(content)
    repeated.key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return repeated


def fault_of(value: object) -> str | None:
    """Return a message about an object that has a key twice, with a remedy; None if there is none."""
    pending = [value]
    while pending:
        entry = pending.pop()
        if isinstance(entry, RepeatedKey):
            return f"has the key {json.dumps(entry.key, ensure_ascii=False)} twice in an object; remove one"
        if isinstance(entry, dict):
            pending.extend(entry.values())
        elif isinstance(entry, list):
            pending.extend(entry)
    return None
