"""Greedy generation, in the text format of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerFast

from client_agent.errors import TextTooLong
from client_agent.model.loading import BaseModel


def completion(base: BaseModel, prompt: Sequence[int], *, max_new_tokens: int) -> Iterator[str]:
    """Continue a tokenised prompt greedily; yield the text as it grows.

    It ends at any special token except unk, as answers do in training, or at the model's last position.

    Raises:
        TextTooLong: the prompt exceeds the model's context.
    """
    if len(prompt) > base.positions:
        raise TextTooLong(
            f"the prompt has {len(prompt)} tokens, and {base.slug} reads {base.positions} at most; "
            "shorten the prompt"
        )
    max_new_tokens = min(max_new_tokens, base.positions - len(prompt) + 1)
    return growing_text(base.tokenizer, prompt, _greedy_tokens(base, prompt, max_new_tokens))


def growing_text(
    tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int], tokens: Iterable[int]
) -> Iterator[str]:
    """Decode tokens incrementally; a character of several tokens is yielded whole."""
    # Decoded together with the prompt, since some tokenizers drop a leading space.
    ids = list(prompt)
    length = len(_text(tokenizer, ids))
    for token in tokens:
        ids.append(token)
        text = _text(tokenizer, ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}") and len(text) > length:
            yield text[length:]
            length = len(text)
    remaining = _text(tokenizer, ids)[length:]
    if remaining:
        yield remaining


@torch.inference_mode()
def _greedy_tokens(base: BaseModel, prompt: Sequence[int], count: int) -> Iterator[int]:
    model, tokenizer = cast(Any, base.model), cast(Any, base.tokenizer)
    ends = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    ids = torch.tensor([list(prompt)], device=base.device)  # (1, t)
    past = None
    for _ in range(count):
        output = model(input_ids=ids, past_key_values=past, use_cache=True)
        token = int(output.logits[0, -1].argmax())
        if token in ends:
            return
        yield token
        past, ids = output.past_key_values, ids.new_tensor([[token]])


def _text(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    decode = cast(Any, tokenizer).decode
    return str(decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
