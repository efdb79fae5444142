"""The divergence of the adapted model from the bare one on public texts, as a loss term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import Penalty, set_aside
from client_agent.model.forward import evaluating, hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import NO_TARGET, Batch, collate, encode, pad_id
from schemas.messages.alignment import Anchor
from schemas.messages.federations import TrainingPlan

TEXTS_PER_STEP = 4
MOST_PLACES = 128
"""The most tokens of a step that are compared: with 150,000 in a vocabulary, each of 5 tensors is 77 MB."""


def pull_to_bare(base: BaseModel, texts: Sequence[Anchor], weight: float, plan: TrainingPlan) -> Penalty:
    """Return weight * mean over tokens of KL(p || q), bare model p and adapted model q, in nats per token.

    A step draws `TEXTS_PER_STEP` texts, fewer with a smaller `batch_size`, and compares the outputs at all
    their tokens, or at `MOST_PLACES` of them at even distances. The bare model is the base model without the
    adapter and without base deltas.
    """
    # Not more than in a batch of the silo's own texts, so that the memory of a step does not grow.
    count = min(TEXTS_PER_STEP, plan.batch_size, len(texts))
    devices = [base.device] if base.device.type == "cuda" else []

    def penalty(_: Mapping[str, nn.Parameter]) -> Tensor:
        # From torch's generator, which the plan seeds, and whose state is in the checkpoint.
        drawn = torch.randperm(len(texts))[:count].tolist()
        encoded = [
            # The text as a whole, which has no question.
            encode(base.tokenizer, "", text.prompt + text.answer, max_length=plan.max_length)
            for text in (texts[number] for number in drawn)
        ]
        batch = collate(encoded, pad=pad_id(base.tokenizer)).to(base.device)
        places = _places(batch)
        # Dropout in the adapter would count as a divergence, so it is off. With activation checkpointing it
        # stays on, because activations are computed again after this context and must be the same.
        with evaluating(base.model) if not plan.gradient_checkpointing else nullcontext():
            # Both passes use the same random numbers, so that dropout that stays on makes no difference.
            with torch.random.fork_rng(devices), torch.no_grad(), set_aside(base):
                bare = _log_shares(base, batch, places)
            adapted = _log_shares(base, batch, places)
        divergence = nnf.kl_div(adapted, bare, reduction="sum", log_target=True)
        return weight * divergence / len(places)

    return penalty


def _places(batch: Batch) -> Tensor:
    """Return the compared positions among all of a batch, (m,) int64."""
    places = (batch.targets.flatten() != NO_TARGET).nonzero().squeeze(1)
    if len(places) <= MOST_PLACES:
        return places
    return places[torch.linspace(0, len(places) - 1, MOST_PLACES, device=places.device).long()]


def _log_shares(base: BaseModel, batch: Batch, places: Tensor) -> Tensor:
    """Compute the logarithms of the model's shares of the next token at m positions, (m, V) float32."""
    with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.device.type == "cuda"):
        hidden = hidden_states(base, batch).flatten(0, 1)[places]  # (m, d)
        logits = base.parts.logits(base.model, hidden)
    return nnf.log_softmax(logits.float(), dim=-1)
