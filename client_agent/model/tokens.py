"""Tokenise texts into batches, and compute the logits of a batch's answer tokens.

Answer tokens are identified by character offsets. Padding is on the right, is masked and has no target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from client_agent.errors import TokenizerUnfit
from client_agent.model.architectures import Architecture

NO_TARGET = -100


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text: token ids, an answer mask, and the character span [start, end) of each token."""

    ids: tuple[int, ...]
    answer: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]  # (0, 0) for special tokens

    def targets(self) -> list[int]:
        """Return for each position the next token if it is an answer token, else NO_TARGET."""
        following = zip(self.ids[1:], self.answer[1:], strict=True)
        return [*(i if answer else NO_TARGET for i, answer in following), NO_TARGET]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded texts, all (n, t) int64; `targets` is the token to predict at each position."""

    ids: Tensor
    attention: Tensor
    targets: Tensor

    @property
    def tokens(self) -> int:
        return int(self.attention.sum())

    @property
    def answers(self) -> int:
        return int((self.targets != NO_TARGET).sum())

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids.to(device), self.attention.to(device), self.targets.to(device))


def encode(
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    answer: str,
    *,
    max_length: int,
    special: bool = True,
    closed: bool = True,
) -> Encoded:
    """Tokenise prompt and answer as one text.

    A token belongs to the answer if it ends inside it. `special` adds the tokenizer's special tokens (bos);
    `closed` ends the answer with eos, unless it ends with a special token. A text of more than `max_length`
    tokens is truncated at the start of its prompt, after bos; an answer that leaves the prompt less than half
    of `max_length` is truncated at its end.

    Raises:
        TokenizerUnfit: the tokenizer has no end-of-sequence token, or yields no token to predict.
    """
    coded = tokenizer(prompt + answer, add_special_tokens=special, return_offsets_mapping=True)
    ids = [int(i) for i in cast(list[int], coded["input_ids"])]
    spans = [(int(s), int(e)) for s, e in cast(list[tuple[int, int]], coded["offset_mapping"])]
    spans = [(start, end) if end > start else (0, 0) for start, end in spans]
    is_answer = [end > len(prompt) for _, end in spans]
    if closed:
        eos = tokenizer.eos_token_id
        if not isinstance(eos, int):
            raise TokenizerUnfit("the tokenizer has no eos token; set eos_token in its tokenizer_config.json")
        if ids and ids[-1] in tokenizer.all_special_ids and len(ids) > 1:
            is_answer[-1] = True
        else:
            ids, spans, is_answer = [*ids, eos], [*spans, (0, 0)], [*is_answer, True]
    if not any(is_answer[1:]):
        raise TokenizerUnfit(
            f"the tokenizer merges prompt and answer into one token ({prompt[-20:]!r} + {answer[:20]!r}); "
            "end the prompt with a separator such as a line break"
        )
    keep = _truncated(ids, is_answer, max_length, tokenizer.bos_token_id)
    return Encoded(
        tuple(ids[i] for i in keep), tuple(is_answer[i] for i in keep), tuple(spans[i] for i in keep)
    )


def _truncated(ids: Sequence[int], answer: Sequence[bool], limit: int, bos: object) -> list[int]:
    """Return the positions that remain with room for `limit` >= 2 tokens."""
    if len(ids) <= limit:
        return list(range(len(ids)))
    first = answer.index(True)
    before = min(first, max(limit - (len(ids) - first), limit // 2))
    start = first - before
    head = [0] if start and before > 1 and ids[0] == bos else []
    return [*head, *range(start + len(head), min(len(ids), first + limit - before))]


def collate(
    texts: Sequence[Encoded],
    *,
    pad: int,
    length: int | None = None,
    targets: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Batch texts, padded on the right to the longest or to `length`.

    `targets` replaces the texts' next tokens as targets.
    """
    width = max(len(text.ids) for text in texts) if length is None else length

    def padded(rows: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows])  # (n, t)

    return Batch(
        ids=padded([list(text.ids) for text in texts], pad),
        attention=padded([[1] * len(text.ids) for text in texts], 0),
        targets=padded([list(row) for row in targets or [x.targets() for x in texts]], NO_TARGET),
    )


def pad_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the padding id; any id is valid, since padding is masked and has no target."""
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int):
            return candidate
    return 0


def hidden_states(model: nn.Module, parts: Architecture, batch: Batch) -> Tensor:
    """Run the model up to its final norm, included: (n, t, d)."""
    decoder = cast(Callable[..., Any], model.get_submodule(parts.decoder))
    output = decoder(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False)
    return cast(Tensor, output.last_hidden_state)


def answer_logits(model: nn.Module, parts: Architecture, batch: Batch) -> tuple[Tensor, Tensor]:
    """Compute the logits (m, V) float32 of the m answer tokens of a batch, row by row, and their ids (m,).

    The head runs at these positions only, without an (n, t, V) tensor.
    """
    is_answer = batch.targets != NO_TARGET  # (n, t)
    hidden = hidden_states(model, parts, batch)[is_answer]  # (m, d)
    return parts.logits(model, hidden).float(), batch.targets[is_answer]
