"""Score a model on held-out examples with one forward pass per batch, without generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite

import torch
from torch.nn import functional as nnf

from client_agent.errors import LossNotFinite
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Encoded, answer_logits, collate, pad_id
from schemas.messages.scores import LOSS, PERPLEXITY, Score

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss in nats per answer token, and the share of answers that greedy decoding would reproduce."""

    loss: float
    exact_match: float
    examples: int

    def scores(self) -> dict[str, Score]:
        values = {LOSS: self.loss, PERPLEXITY: exp(min(self.loss, _LARGEST_EXPONENT))}
        return {name: Score(value=value, count=self.examples) for name, value in values.items()}


@torch.inference_mode()
def mean_loss(base: BaseModel, texts: Sequence[Encoded], *, batch_size: int = 32) -> float:
    """Compute the mean loss in nats per answer token of encoded texts.

    Raises:
        LossNotFinite: the model's output is NaN or infinite.
    """
    loss, answers = 0.0, 0
    for start in range(0, len(texts), batch_size):
        batch = collate(texts[start : start + batch_size], pad=pad_id(base.tokenizer)).to(base.device)
        logits, targets = answer_logits(base.model, base.parts, batch)
        loss += float(nnf.cross_entropy(logits, targets, reduction="sum"))
        answers += batch.answers
    if not isfinite(loss):
        raise LossNotFinite(f"the loss is {loss}; load the base model in float32 or bfloat16")
    return loss / answers


@torch.inference_mode()
def evaluate(
    base: BaseModel, examples: Sequence[Example], *, max_length: int, batch_size: int = 32
) -> Evaluation:
    """Compute loss (nats per answer token, end-of-sequence included), perplexity and exact match.

    An example matches if the argmax equals the answer at every answer token under teacher forcing. That is
    equivalent to greedy decoding: both read the same text up to the first mistake, and match neither
    after it.

    Raises:
        LossNotFinite: the model's output is NaN or infinite.
        TextTooLong: an example exceeds the base model's context.
    """
    texts = encode_for(base, examples, max_length)
    loss, answers, matches = 0.0, 0, 0
    for start in range(0, len(texts), batch_size):
        batch = collate(texts[start : start + batch_size], pad=pad_id(base.tokenizer)).to(base.device)
        logits, targets = answer_logits(base.model, base.parts, batch)
        loss += float(nnf.cross_entropy(logits, targets, reduction="sum"))
        right = torch.ones_like(batch.targets, dtype=torch.bool)  # (n, t)
        right[batch.targets != NO_TARGET] = logits.argmax(-1) == targets
        answers += batch.answers
        matches += int(right.all(dim=1).sum())
    mean = loss / answers
    if not isfinite(mean):
        raise LossNotFinite(f"the loss on the test set is {mean}; load the base model in float32 or bfloat16")
    return Evaluation(mean, matches / len(texts), len(texts))
