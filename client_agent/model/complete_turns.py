"""Compare the content of turns with the text that a chat template renders: letters and digits in order.

Templates trim white space, and quote or escape what they render. A text that lacks letters or digits of a
turn lacks a part of what its row says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid
from client_agent.model.chat_template import Turn

_MOST_SHAPES = 1000
_MOST_TURNS = 64

Parts = tuple[str, ...] | None
"""The text of a template before, between and behind the contents of turns, without white space; None = the
template does not write each content once and in order."""

_shapes: WeakKeyDictionary[PreTrainedTokenizerFast, tuple[object, dict[object, Parts]]] = WeakKeyDictionary()


def fixed_parts(
    turns: Sequence[Turn],
    tokenizer: PreTrainedTokenizerFast,
    tools: str,
    rendered: Callable[..., str],
    *,
    prompt: bool,
) -> Parts:
    """Return what a template writes around the contents of turns of these roles; rendered once for all rows.

    Args:
        rendered: renders turns, perhaps with `prompt`.
    """
    template, shapes = _shapes.get(tokenizer, (None, {}))
    # Bounded: data may have a new shape in every row.
    if template != tokenizer.chat_template or len(shapes) >= _MOST_SHAPES:
        shapes = {}
        _shapes[tokenizer] = tokenizer.chat_template, shapes
    key = (tuple((turn.role, not turn.content.strip(), turn.fields) for turn in turns), tools, prompt)
    if key not in shapes:
        shapes[key] = _derived(turns, rendered, prompt=prompt) if len(turns) <= _MOST_TURNS else None
    return shapes[key]


def _derived(turns: Sequence[Turn], rendered: Callable[..., str], *, prompt: bool) -> Parts:
    # Distinct words without white space, which templates trim.
    contents = [f"tessera{index}turn" if turn.content.strip() else "" for index, turn in enumerate(turns)]
    probes = [replace(turn, content=content) for turn, content in zip(turns, contents, strict=True)]
    try:
        following = _squeezed(rendered(probes, prompt=prompt))
    except DataInvalid:
        return None
    parts = []
    for content in contents:
        part, probe, following = following.partition(content) if content else ("", "", following)
        if probe != content or (content and content in following):
            return None
        parts.append(part)
    return (*parts, following)


def is_interleaved(text: str, parts: Parts, contents: Sequence[str]) -> bool:
    """Whether a text is the fixed parts with the whole contents between them, except for white space."""
    if parts is None:
        return False
    pairs = zip(parts, (*contents, ""), strict=True)
    return _squeezed(text) == "".join(part + _squeezed(content) for part, content in pairs)


def is_rendered(content: str, text: str, changed: str) -> str | None:
    """Return the text in place of `content` if it lacks a part of `content`; None = it has all of it.

    Args:
        changed: the text rendered with another content; empty = not known. If both texts are equal, the
            content is not rendered at all.
    """
    if text == changed:
        return ""
    start = _common(text, changed)
    end = _common(text[start:][::-1], changed[start:][::-1])
    place = text[start : len(text) - end]
    near = text[max(0, start - len(content)) : len(text) - end + len(content)]
    # Templates may write a content as JSON.
    spellings = (content, json.dumps(content, ensure_ascii=False)[1:-1], json.dumps(content)[1:-1])
    if any(_has(near, spelling) for spelling in spellings):
        return None
    return place or "\0"


def leaves_of(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (field, text) of an answer's reasoning, and of the names and arguments of its calls."""
    yield from (("reasoning_content", text) for text in _leaves(fields.get("reasoning_content")))
    calls = fields.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call["function"]
        yield from (("tool_calls", text) for text in _leaves([function["name"], function["arguments"]]))


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)


def _common(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _has(text: str, content: str) -> bool:
    """Whether a text has the letters and digits of a content; its other signs if it has neither."""
    letters = _letters(content)
    return letters in _letters(text) if letters else _squeezed(content) in _squeezed(text)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
