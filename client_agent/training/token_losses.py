"""Compute the losses of answer tokens, with one forward pass over what texts have in common.

In a causal model a hidden state depends only on the tokens up to its position. So a text needs no pass of its
own if another text begins with all its tokens but the last. Options of one token cost a single pass over
their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from client_agent.model.forward import LOGITS_AT_ONCE, grouped_by_length, hidden_states, tokens_per_pass
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText, collate, pad_id


@dataclass(frozen=True, slots=True)
class AnswerLosses:
    """The losses of a text's m answer tokens, in order, and whether each of them is the likeliest token."""

    losses: Tensor  # (m,) float32, on the CPU
    matches: bool


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A text that is run, and the indices of all texts whose losses it yields, its own among them."""

    text: TokenizedText
    readers: list[int]


def shared_rows(texts: Sequence[TokenizedText]) -> list[SharedRow]:
    """Return the fewest texts whose forward passes yield the losses of all."""
    read = [text.ids[:-1] for text in texts]  # nothing is predicted from the last token
    rows: list[SharedRow] = []
    covered: tuple[int, ...] = ()
    # Sorted backwards, a text comes right after those that it begins.
    for index in sorted(range(len(texts)), key=read.__getitem__, reverse=True):
        if rows and covered[: len(read[index])] == read[index]:
            rows[-1].readers.append(index)
        else:
            covered = read[index]
            rows.append(SharedRow(texts[index], [index]))
    return rows


@torch.inference_mode()
def answer_losses(base: BaseModel, texts: Sequence[TokenizedText]) -> list[AnswerLosses]:
    """Compute the losses, in nats, of the answer tokens of texts.

    The head runs at the positions before answer tokens only, for `LOGITS_AT_ONCE` at a time.
    """
    rows = shared_rows(texts)
    answers: dict[int, AnswerLosses] = {}
    lengths = [len(row.text.ids) for row in rows]
    for group in grouped_by_length(lengths, tokens_per_pass(base.device)):
        batch = [rows[index] for index in group]
        readers = [reader for row in batch for reader in row.readers]
        losses, right = _batch_losses(base, batch, texts)
        counts = [sum(texts[reader].answer[1:]) for reader in readers]
        by_text = zip(readers, torch.split(losses, counts), torch.split(right, counts), strict=True)
        answers |= {
            reader: AnswerLosses(text_losses, bool(all_right.all()))
            for reader, text_losses, all_right in by_text
        }
    return [answers[index] for index in range(len(texts))]


def _batch_losses(
    base: BaseModel, rows: Sequence[SharedRow], texts: Sequence[TokenizedText]
) -> tuple[Tensor, Tensor]:
    """Run rows; return the loss and the match of each answer token, reader by reader."""
    places: dict[tuple[int, int], int] = {}  # row and position of each hidden state that the head reads
    place_of_token, tokens = [], []
    for number, row in enumerate(rows):
        for text in (texts[reader] for reader in row.readers):
            for position, (token, is_answer) in enumerate(zip(text.ids[1:], text.answer[1:], strict=True)):
                if is_answer:
                    place_of_token.append(places.setdefault((number, position), len(places)))
                    tokens.append(token)
    batch = collate([row.text for row in rows], pad=pad_id(base.tokenizer)).to(base.device)
    read, expected = torch.tensor(list(places)).T, torch.tensor(tokens, device=base.device)
    hidden = hidden_states(base, batch)[read[0], read[1]]  # (places, d)
    place = torch.tensor(place_of_token, device=base.device)
    losses = torch.empty(len(tokens), device=base.device)
    right = torch.empty(len(tokens), dtype=torch.bool, device=base.device)
    size = max(1, LOGITS_AT_ONCE // base.vocabulary)
    for start in range(0, len(places), size):
        logits = base.parts.logits(base.model, hidden[start : start + size]).float()  # (size, V)
        in_block = (place >= start) & (place < start + size)
        index, target = place[in_block] - start, expected[in_block]
        losses[in_block] = logits.logsumexp(-1)[index] - logits[index, target]
        right[in_block] = logits.argmax(-1)[index] == target
    return losses.cpu(), right.cpu()
