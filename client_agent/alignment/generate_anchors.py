"""Anchor texts that the pivot writes, for federations without public texts to align on.

Activations and gradients on sampled text resemble those on real text; those on random tokens do not
(docs/decisions/0031-pivot-written-anchors.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from client_agent.errors import AlignmentImpossible, TokenizerUnfit
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import encode
from schemas.messages.alignment import Anchor

_AT_ONCE = 64
_FEWEST_TOKENS = 4
_PROMPT_SHARE = 2 / 3
_MOST_TRIES = 20  # texts per anchor: models with little variety repeat themselves


def generate_anchors(
    pivot: BaseModel,
    count: int,
    *,
    seed: int,
    max_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> list[Anchor]:
    """Sample `count` distinct texts of the pivot, and split each into a prompt and a third as answer.

    Tokens are sampled at temperature 1 until a special token or `max_tokens`. The same seed yields the same
    texts on one machine. `progress` is called with the number of texts so far.

    Raises:
        AlignmentImpossible: the model writes too few distinct texts.
        TokenizerUnfit: the tokenizer has neither a bos nor an eos token.
    """
    generator = torch.Generator().manual_seed(seed)
    length = min(max_tokens, pivot.positions - 1)
    anchors: dict[tuple[str, str], Anchor] = {}
    tried = 0
    while len(anchors) < count and tried < _MOST_TRIES * count:
        for ids in _texts(pivot, length, generator):
            cut = _cut(pivot, ids)
            if cut is not None and cut not in anchors and len(anchors) < count:
                anchors[cut] = Anchor(id=f"w{len(anchors):05}", prompt=cut[0], answer=cut[1])
        tried += _AT_ONCE
        if progress is not None:
            progress(len(anchors))
    if len(anchors) < count:
        raise AlignmentImpossible(
            f"{pivot.slug} wrote {tried} texts, of which {len(anchors)} are different and long enough; it "
            "may be trained for answers only: use another model, or public texts"
        )
    return [*anchors.values()]


@torch.inference_mode()
def _texts(pivot: BaseModel, length: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Sample texts in a batch, each from the opening token; yield their token ids without special tokens."""
    model, tokenizer = cast(Any, pivot.model), cast(Any, pivot.tokenizer)
    opening = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if opening is None:
        raise TokenizerUnfit("the tokenizer has neither bos nor eos token; set one in its configuration")
    ids = torch.full((_AT_ONCE, 1), int(opening), device=pivot.device)
    written: list[Tensor] = []
    past = None
    for _ in range(length):
        output = model(input_ids=ids, past_key_values=past, use_cache=True)
        chances = output.logits[:, -1].float().softmax(-1).cpu()  # (n, V)
        ids = torch.multinomial(chances, 1, generator=generator).to(pivot.device)  # (n, 1)
        written.append(ids)
        past = output.past_key_values
    special = set(tokenizer.all_special_ids)
    for row in torch.cat(written, dim=1).tolist():
        end = next((t for t, token in enumerate(row) if token in special), len(row))
        yield row[:end]


def _cut(pivot: BaseModel, ids: list[int]) -> tuple[str, str] | None:
    """Split a text into prompt and answer; None if one of them is empty or their tokens overlap."""
    if len(ids) < _FEWEST_TOKENS:
        return None
    decode = cast(Any, pivot.tokenizer).decode
    text, prompt = (
        str(decode(part, clean_up_tokenization_spaces=False))
        for part in (ids, ids[: round(_PROMPT_SHARE * len(ids))])
    )
    answer = text.removeprefix(prompt)
    if "\N{REPLACEMENT CHARACTER}" in text or not prompt or not answer.strip() or answer == text:
        return None
    try:
        encode(pivot.tokenizer, prompt, answer, max_length=pivot.positions, closed=False)
    except TokenizerUnfit:  # one token spans both
        return None
    return prompt, answer
