"""Turn texts into tokens and batches, and batches into the logits of their answer tokens.

An answer token is known by its character offsets. Padding is on the right, is masked and has no target.
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
    """One text: ids, which of them are the answer's, and the characters [start, end) that each stands for."""

    ids: tuple[int, ...]
    answer: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]  # (0, 0) for special tokens

    def targets(self) -> list[int]:
        """Give for each position the answer token that it must predict, or NO_TARGET."""
        following = zip(self.ids[1:], self.answer[1:], strict=True)
        return [*(i if answer else NO_TARGET for i, answer in following), NO_TARGET]


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, all (n, t) int64; `targets` holds at each position the token to predict."""

    ids: Tensor
    attention: Tensor
    targets: Tensor

    @property
    def tokens(self) -> int:
        """Count the tokens that are not padding."""
        return int(self.attention.sum())

    @property
    def answers(self) -> int:
        """Count the answer tokens."""
        return int((self.targets != NO_TARGET).sum())

    def to(self, device: torch.device) -> Batch:
        """Move to a device."""
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

    A token is the answer's if it ends inside the answer. `special` adds the tokenizer's own special tokens
    (bos); `closed` ends the answer with eos, unless a special token already does. A text of more than
    `max_length` tokens loses the start of its prompt, bos excepted; an answer that leaves the prompt less
    than half of the room loses its end.

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
    keep = _kept(ids, is_answer, max_length, tokenizer.bos_token_id)
    return Encoded(
        tuple(ids[i] for i in keep), tuple(is_answer[i] for i in keep), tuple(spans[i] for i in keep)
    )


def _kept(ids: Sequence[int], answer: Sequence[bool], limit: int, bos: object) -> list[int]:
    """Choose the positions that stay when there is room for `limit` >= 2 tokens."""
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
    """Put texts side by side, padded on the right to the longest, or to `length`.

    `targets` replaces the texts' own tokens as what is to be predicted.
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
    """Give the id that fills up a batch; any will do, since padding is never attended to nor predicted."""
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int):
            return candidate
    return 0


def hidden_states(model: nn.Module, parts: Architecture, batch: Batch) -> Tensor:
    """Run the model up to and with its final norm: (n, t, d)."""
    decoder = cast(Callable[..., Any], model.get_submodule(parts.decoder))
    output = decoder(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False)
    return cast(Tensor, output.last_hidden_state)


def answer_logits(model: nn.Module, parts: Architecture, batch: Batch) -> tuple[Tensor, Tensor]:
    """Give the logits (m, V) float32 of the m answer tokens of a batch, row by row, and their ids (m,).

    The head runs at these positions only: no (n, t, V) tensor is ever made.
    """
    wanted = batch.targets != NO_TARGET  # (n, t)
    hidden = hidden_states(model, parts, batch)[wanted]  # (m, d)
    return parts.logits(model, hidden).float(), batch.targets[wanted]
