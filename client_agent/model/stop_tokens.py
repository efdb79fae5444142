"""The tokens that end generation: the tokenizer's eos, those of the model's configuration, common names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerFast

_FILES = ("generation_config.json", "config.json")
_ENDS_BY_NAME = frozenset(
    (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot|>",
        "<|return|>",
        "<|call|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|end_of_turn|>",
        "<|end_of_role|>",
        "<|eos|>",
        "<end_of_turn>",
        "<turn|>",
        "<eos>",
        "</s>",
        "<EOT>",
        "<end_of_utterance>",
        "[EOS]",
        "[EOT]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)
"""Special tokens at which servers stop by their name, as llama.cpp does, whatever the configuration says."""

_configured: WeakKeyDictionary[PreTrainedTokenizerFast, frozenset[int]] = WeakKeyDictionary()
_stops: WeakKeyDictionary[PreTrainedTokenizerFast, frozenset[int]] = WeakKeyDictionary()


def read_configured_stops(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Read the ids at which a model's configuration ends generation, for `stop_ids` of its tokenizer."""
    _configured[tokenizer] = frozenset(i for name in _FILES for i in _ids(folder / name))
    _stops.pop(tokenizer, None)


def stop_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Return the ids of the tokens that end generation."""
    ids = _stops.get(tokenizer)
    if ids is None:
        added = cast(dict[int, Any], tokenizer.added_tokens_decoder)
        by_name = {i for i, token in added.items() if token.special and token.content in _ENDS_BY_NAME}
        configured = _configured.get(tokenizer, frozenset())
        eos = tokenizer.eos_token_id
        ids = frozenset(by_name | configured | ({eos} if isinstance(eos, int) else set()))
        _stops[tokenizer] = ids
    return ids


def ends_of(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Return the ids after which an answer is complete: `stop_ids`, and special tokens except unk."""
    special = cast(Any, tokenizer)
    return (frozenset(special.all_special_ids) - {special.unk_token_id}) | stop_ids(tokenizer)


def _ids(file: Path) -> list[int]:
    """Return the eos ids of a configuration file; one that is missing or damaged has none."""
    try:
        content = json.loads(file.read_text("utf-8"))
        value = content.get("eos_token_id", content.get("text_config", {}).get("eos_token_id"))
    except (OSError, ValueError, AttributeError):
        return []
    listed = value if isinstance(value, list) else [value]
    return [i for i in listed if isinstance(i, int)]
