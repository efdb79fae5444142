"""Text that spells special tokens: encoded as the text that it is, whatever the tokens around it.

A tokenizer turns `<|im_end|>` into the special token wherever it stands, in a question about chat templates
as well as at the end of a turn. Here special tokens have a second spelling of the same length, in characters
of private use, and a copy of the tokenizer knows this one alone. What a template writes is then spelled
privately, what the data say is not, and every other token is that of the tokenizer itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from client_agent.errors import DataInvalid

Span = tuple[int, int]
_FIRST = 0x100000
_FILLER = chr(0x10FFFD)
_PRIVATE = re.compile("[\U00100000-\U0010fffd]")


@dataclass(frozen=True, slots=True)
class _Spellings:
    """The special tokens of a tokenizer, which `pattern` finds, and their private spellings."""

    private: dict[str, str]
    public: dict[str, str]
    pattern: re.Pattern[str]
    private_pattern: re.Pattern[str]


_spellings: WeakKeyDictionary[PreTrainedTokenizerFast, _Spellings] = WeakKeyDictionary()
_copies: WeakKeyDictionary[PreTrainedTokenizerFast, Tokenizer] = WeakKeyDictionary()


def special_texts(text: str, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return the special tokens that a text spells, in order."""
    return _of(tokenizer).pattern.findall(text)


def special_spans(text: str, tokenizer: PreTrainedTokenizerFast) -> list[Span]:
    """Return the spans [start, end) of a text that spell special tokens."""
    return [match.span() for match in _of(tokenizer).pattern.finditer(text)]


def hide(text: str, tokenizer: PreTrainedTokenizerFast, place: str = "") -> str:
    """Return a text with its special tokens spelled privately, of the same length.

    Raises:
        DataInvalid: the text uses such characters itself.
    """
    _require_free(text, place)
    return _hidden(text, _of(tokenizer))


def located(place: str) -> str:
    """Return the beginning of a message about a row; empty if its place is not known."""
    return f"{place}: " if place else ""


def _require_free(text: str, place: str = "") -> None:
    if _PRIVATE.search(text):
        raise DataInvalid(
            f"{located(place)}a text has a character of Unicode's last private plane "
            "(U+100000 to U+10FFFD), which stands for special tokens; remove the character"
        )


def _hidden(text: str, spellings: _Spellings) -> str:
    return spellings.pattern.sub(lambda match: spellings.private[match[0]], text)


def reveal(text: str, tokenizer: PreTrainedTokenizerFast) -> tuple[str, tuple[Span, ...]]:
    """Return a text with hidden special tokens spelled out, and the spans of these."""
    spellings = _of(tokenizer)
    spans = tuple(match.span() for match in spellings.private_pattern.finditer(text))
    return spellings.private_pattern.sub(lambda match: spellings.public[match[0]], text), spans


def encode_as_text(
    text: str, tokenizer: PreTrainedTokenizerFast, as_text: Sequence[Span], *, special: bool
) -> tuple[list[int], list[Span]]:
    """Tokenise a text whose spans `as_text` are no special tokens, though they spell some.

    Args:
        special: add the tokenizer's special tokens (bos).

    Raises:
        DataInvalid: see `hide`.
    """
    _require_free(text)
    spellings, parts, position = _of(tokenizer), [], 0
    for start, end in (*as_text, (len(text), len(text))):
        parts += [_hidden(text[position:start], spellings), text[start:end]]
        position = end
    coded = _copy(tokenizer).encode("".join(parts), add_special_tokens=special)
    return list(coded.ids), list(coded.offsets)


def _of(tokenizer: PreTrainedTokenizerFast) -> _Spellings:
    spellings = _spellings.get(tokenizer)
    if spellings is None:
        spellings = _spellings[tokenizer] = _build(tokenizer)
    return spellings


def _build(tokenizer: PreTrainedTokenizerFast) -> _Spellings:
    added = cast(dict[int, Any], tokenizer.added_tokens_decoder)
    texts = sorted({str(token.content) for token in added.values() if token.special and token.content})
    # Of the same length, so that spans of characters stay valid.
    private = {text: chr(_FIRST + i) + _FILLER * (len(text) - 1) for i, text in enumerate(texts)}
    # One token may begin with another.
    longest_first = sorted(texts, key=len, reverse=True)
    return _Spellings(
        private,
        {spelling: text for text, spelling in private.items()},
        _any_of(longest_first),
        _any_of(private[text] for text in longest_first),
    )


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _copy(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    copy = _copies.get(tokenizer)
    if copy is None:
        copy = _copies[tokenizer] = _respelled(tokenizer, _of(tokenizer).private)
    return copy


def _respelled(tokenizer: PreTrainedTokenizerFast, private: dict[str, str]) -> Tokenizer:
    """Return a copy of a tokenizer that knows special tokens by their private spelling."""
    content = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
    for token in content["added_tokens"]:
        if token["special"]:
            token["content"] = private[token["content"]]
    model = content["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {private.get(token, token): index for token, index in vocabulary.items()}
    elif isinstance(vocabulary, list):  # a unigram model: pairs of a piece and its score
        model["vocab"] = [[private.get(piece, piece), score] for piece, score in vocabulary]
    if "merges" in model:  # one that spells a special token would make it from text
        model["merges"] = [merge for merge in model["merges"] if private.keys().isdisjoint(_spelled(merge))]
    if model.get("unk_token") in private:
        model["unk_token"] = private[model["unk_token"]]
    # State of the original that must not cut texts here.
    content["truncation"] = content["padding"] = None
    return Tokenizer.from_str(json.dumps(content))


def _spelled(merge: str | list[str]) -> tuple[str, str, str]:
    """Return the parts of a merge, and the token that it makes of them."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second, first + second
