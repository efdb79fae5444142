"""Compare the ids of a tokenizer's tokens with the rows of a model's embedding; a token may lack its row."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from client_agent.errors import TokenizerUnfit

_NAMED = 4
_SHOWN = 20  # characters of a text around a token

_without_row: WeakKeyDictionary[PreTrainedTokenizerFast, Mapping[int, str]] = WeakKeyDictionary()

log = logging.getLogger(__name__)


def compare_rows(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, source: str) -> None:
    """Record and log the tokens without a row in the model's embedding, which no text may contain.

    Raises:
        TokenizerUnfit: the eos token, which ends every text, is such a token.
    """
    # A tokenizer may have more tokens than the model has rows: an index beyond them is an error on a CPU and
    # undefined on a GPU.
    rows = int(cast(Any, model).get_input_embeddings().weight.shape[0])
    tokens = tokenizer.get_vocab()
    beyond = dict(sorted((token_id, token) for token, token_id in tokens.items() if token_id >= rows))
    _without_row[tokenizer] = beyond
    if not beyond:
        return
    named = ", ".join(f"{token!r}" for token in list(beyond.values())[:_NAMED])
    further = f" and {len(beyond) - _NAMED} more" if len(beyond) > _NAMED else ""
    fault = f"{source}: the embedding has {rows} rows, and none for the tokens {named}{further}"
    if tokenizer.eos_token_id in beyond:
        raise TokenizerUnfit(
            f"{fault}; every text ends with {tokenizer.eos_token!r}, so use the tokenizer that was published "
            "with the model, or set eos_token to a token that the model has"
        )
    log.warning("model: %s; texts that contain them are refused", fault)


def has_row(tokenizer: PreTrainedTokenizerFast, token_id: int) -> bool:
    """Whether the tokenizer's model, if it is loaded, has a row for a token."""
    return token_id not in _without_row.get(tokenizer, ())


def require_rows(
    tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]
) -> None:
    """Check that the model, if it is loaded, has a row for each token of a text.

    Raises:
        TokenizerUnfit: it has none for one of them.
    """
    beyond = _without_row.get(tokenizer)
    if not beyond:
        return
    for token_id, (start, end) in zip(ids, spans, strict=True):
        if token_id in beyond:
            raise TokenizerUnfit(
                f"the token {beyond[token_id]!r} (id {token_id}) is in the text "
                f"{text[max(0, start - _SHOWN) : end + _SHOWN]!r}, and the model's embedding has no row for "
                "it; use the tokenizer that was published with the model, or remove the token from it"
            )
