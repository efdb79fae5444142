"""Digests of the parts of a tokenizer that decide which tokens a text has; see decision 73.

They are of the loaded tokenizer, so the layout of its files, and its state of padding and truncation, do not
count.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerFast

from schemas.messages.enrolment import TokenizerDigests

_digests: WeakKeyDictionary[PreTrainedTokenizerFast, TokenizerDigests] = WeakKeyDictionary()


def tokenizer_digests(tokenizer: PreTrainedTokenizerFast, *, chats: bool) -> TokenizerDigests:
    """Return the digests of a tokenizer; with `chats` also that of its chat template, which is in use."""
    if tokenizer not in _digests:
        _digests[tokenizer] = _computed_digests(tokenizer)
    template = _digest(tokenizer.chat_template) if chats else None
    return _digests[tokenizer].model_copy(update={"chat_template": template})


def _computed_digests(tokenizer: PreTrainedTokenizerFast) -> TokenizerDigests:
    whole = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
    model = dict(whole["model"])
    merges, vocabulary = model.pop("merges", []), model.pop("vocab", {})
    if isinstance(vocabulary, dict):  # else tokens with scores, in the order of their ids
        vocabulary = sorted(vocabulary.items(), key=lambda entry: entry[1])
    ends = [tokenizer.bos_token_id, tokenizer.eos_token_id]
    return TokenizerDigests(
        vocabulary=_digest([model, vocabulary]),
        # Versions of the library write a merge in two ways.
        merges=_digest([merge.split(" ") if isinstance(merge, str) else merge for merge in merges]),
        normalizer=_digest(whole["normalizer"]),
        pre_tokenizer=_digest(whole["pre_tokenizer"]),
        added_tokens=_digest(sorted(whole["added_tokens"], key=lambda token: token["id"])),
        post_processor=_digest([whole["post_processor"], ends]),
    )


def _digest(part: object) -> str:
    text = json.dumps(_stated(part), sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _stated(part: object) -> object:
    """Return a part without settings that are off, which not every version of a tokenizer's file names."""
    if isinstance(part, dict):
        return {key: _stated(value) for key, value in part.items() if not _is_off(value)}
    return [_stated(value) for value in part] if isinstance(part, list | tuple) else part


def _is_off(value: object) -> bool:
    return value is None or value is False or value == ""
