"""Greedy generation, in the text format of training: one text as it grows, or many in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from client_agent.errors import TextTooLong
from client_agent.model.loading import BaseModel
from client_agent.model.token_budget import grouped_by_length
from client_agent.model.tokens import pad_id


def completion(base: BaseModel, prompt: Sequence[int], *, max_new_tokens: int) -> Iterator[str]:
    """Continue a tokenised prompt greedily; yield the text as it grows.

    It ends at any special token except unk, as answers do in training, or at the model's last position.

    Raises:
        TextTooLong: the prompt exceeds the model's context.
    """
    _require_room(base, len(prompt))
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


def completions(base: BaseModel, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[str]:
    """Continue tokenised prompts greedily, in batches; each text is what `completion` yields.

    Raises:
        TextTooLong: a prompt and `max_new_tokens` exceed the model's context.
    """
    _require_room(base, max(map(len, prompts), default=0), max_new_tokens)
    texts = [""] * len(prompts)
    for group in grouped_by_length([len(prompt) + max_new_tokens for prompt in prompts]):
        batch = [prompts[index] for index in group]
        for index, tokens in zip(group, _greedy_batch(base, batch, max_new_tokens), strict=True):
            texts[index] = "".join(growing_text(base.tokenizer, prompts[index], tokens))
    return texts


@torch.inference_mode()
def _greedy_batch(base: BaseModel, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Continue prompts by the public `generate`; padding is on the left, so all answers begin together."""
    width, pad, ends = max(map(len, prompts)), pad_id(base.tokenizer), _ends(base.tokenizer)
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])  # (n, t)
    read = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    config = _settings(
        max_new_tokens=count, do_sample=False, eos_token_id=sorted(ends) or None, pad_token_id=pad
    )
    generate = cast(Callable[..., Tensor], cast(Any, base.model).generate)
    with _no_settings_of_its_own(base):
        whole = generate(
            input_ids=ids.to(base.device), attention_mask=read.to(base.device), generation_config=config
        )
    answers = cast(list[list[int]], whole[:, width:].tolist())
    return [
        answer[: next((i for i, token in enumerate(answer) if token in ends), len(answer))]
        for answer in answers
    ]


@contextmanager
def _no_settings_of_its_own(base: BaseModel) -> Iterator[None]:
    """Ignore a model's generation_config.json, whose penalties and bans would apply here too."""
    model = cast(Any, base.model)
    stored = model.generation_config
    model.generation_config = _settings()
    try:
        yield
    finally:
        model.generation_config = stored


def _settings(**options: object) -> GenerationConfig:
    return cast(Callable[..., GenerationConfig], GenerationConfig)(**options)


def _require_room(base: BaseModel, prompt: int, new: int = 1) -> None:
    if prompt + new - 1 > base.positions:
        raise TextTooLong(
            f"the prompt has {prompt} tokens, and {base.slug} reads {base.positions - new + 1} at most; "
            "shorten the prompt"
        )


def _ends(tokenizer: PreTrainedTokenizerFast) -> set[int]:
    special = cast(Any, tokenizer)
    return set(special.all_special_ids) - {special.unk_token_id}


@torch.inference_mode()
def _greedy_tokens(base: BaseModel, prompt: Sequence[int], count: int) -> Iterator[int]:
    model, ends = cast(Any, base.model), _ends(base.tokenizer)
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
