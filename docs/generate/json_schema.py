"""Types, limits and defaults of a JSON schema as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
Link = Callable[[str], str]

_NAMES = {"boolean": "true or false", "null": "null", "object": "object", "number": "number"}
_BIGGEST = 2**53


def type_text(schema: Schema, link: Link = lambda name: name) -> str:
    """Return the type of a value, with its limits; `link` renders the name of another definition."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            parts = dict.fromkeys(type_text(part, link) for part in schema[several])
            return " or ".join(parts)
    return _plain_type(schema, link)


def _plain_type(schema: Schema, link: Link) -> str:
    match schema.get("type"):
        case "array":
            return f"list of {type_text(schema['items'], link) if 'items' in schema else 'values'}"
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            values = schema["additionalProperties"]
            return "object" if _is_any_json(values) else f"object of {type_text(values, link)}"
        case "integer" | "number" as kind:
            return " ".join(filter(None, (kind, limits(schema))))
        case "string" if schema.get("format") == "date-time":
            return "time"
        case str() as kind:
            return _NAMES.get(kind, kind)
        case _:
            return "any JSON"


def _is_any_json(schema: Schema) -> bool:
    """Whether a schema is pydantic's `JsonValue`, which no page describes."""
    return bool(schema.get("$ref", "").rpartition("/")[2] == "JsonValue")


def limits(schema: Schema) -> str:
    """Return the range of a number as text."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if most is not None and most >= _BIGGEST:
        most = None
    if below is not None and below >= _BIGGEST:
        below = None
    lower = f"≥ {_number(least)}" if least is not None else f"> {_number(above)}" if above is not None else ""
    upper = f"≤ {_number(most)}" if most is not None else f"< {_number(below)}" if below is not None else ""
    return ", ".join(filter(None, (lower, upper)))


def _number(value: float) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:g}"
    return str(int(value))


def default_text(schema: Schema, *, required: bool) -> str:
    """Return the default as JSON in code, or "required"."""
    if required:
        return "required"
    value = schema.get("default")
    if isinstance(value, Mapping):
        return "see there"
    return f"`{json.dumps(value, ensure_ascii=False)}`"
