"""Have a model write anchor texts of its own, for federations that have no public texts to align on.

A pivot that has learnt to write texts puts activations and gradients where texts put them; random tokens
would not (docs/decisions/0031-pivot-written-anchors.md).
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
_MOST_TRIES = 20  # texts written for each that is wanted: a model that has little to say repeats itself


def written_anchors(
    pivot: BaseModel,
    count: int,
    *,
    seed: int,
    max_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> list[Anchor]:
    """Give `count` different texts of the pivot, each cut into a prompt and an answer a third as long.

    Every token is drawn from the model's own distribution, as it is: a text ends where the model ends it, or
    after `max_tokens`. The same seed gives the same texts on one machine. `progress` is told how many there
    are.

    Raises:
        AlignmentImpossible: the model writes too few different texts.
        TokenizerUnfit: nothing says where a text of this model begins.
    """
    dice = torch.Generator().manual_seed(seed)
    length = min(max_tokens, pivot.positions - 1)
    anchors: dict[tuple[str, str], Anchor] = {}
    tried = 0
    while len(anchors) < count and tried < _MOST_TRIES * count:
        for ids in _texts(pivot, length, dice):
            cut = _cut(pivot, ids)
            if cut is not None and cut not in anchors and len(anchors) < count:
                anchors[cut] = Anchor(id=f"w{len(anchors):05}", prompt=cut[0], answer=cut[1])
        tried += _AT_ONCE
        if progress is not None:
            progress(len(anchors))
    if len(anchors) < count:
        raise AlignmentImpossible(
            f"{pivot.slug} wrote {tried} texts, of which {len(anchors)} are different and long enough; it "
            "may have learnt to answer only: let another model write, or use public texts"
        )
    return [*anchors.values()]


@torch.inference_mode()
def _texts(pivot: BaseModel, length: int, dice: torch.Generator) -> Iterator[list[int]]:
    """Write texts side by side, each from the token that opens one on; give their tokens, no special ones."""
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
        ids = torch.multinomial(chances, 1, generator=dice).to(pivot.device)  # (n, 1)
        written.append(ids)
        past = output.past_key_values
    special = set(tokenizer.all_special_ids)
    for row in torch.cat(written, dim=1).tolist():
        end = next((t for t, token in enumerate(row) if token in special), len(row))
        yield row[:end]


def _cut(pivot: BaseModel, ids: list[int]) -> tuple[str, str] | None:
    """Cut a text in two, if both parts are text and its tokens can be told apart."""
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
    except TokenizerUnfit:  # both are one token
        return None
    return prompt, answer
