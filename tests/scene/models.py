"""Adapters with random frames in a base model, and the logits of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject_pq
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import collate, encode, pad_id
from schemas.messages.federations import AdapterPlan


def inject_random_pq(base: BaseModel, plan: AdapterPlan, *, gated: bool = False) -> Any:
    """Put an adapter of P and Q, whose frames are random, into a base model."""
    return inject_pq(base, plan, random_frames(base, plan, 0), gated=gated)


def logits_of(model: Any, ids: Any, **options: bool) -> torch.Tensor:
    """Return the logits, (b, t, V), of a base model or a public one for token ids, (b, t)."""
    module: Any = model.model if isinstance(model, BaseModel) else model
    with torch.no_grad():
        logits: torch.Tensor = module(input_ids=torch.as_tensor(ids), **options).logits
    return logits


def answer_logits_of(base: BaseModel) -> torch.Tensor:
    """Return the logits of one short answer, (tokens of the answer, V)."""
    batch = collate([encode(base.tokenizer, "rev abc=", "cba", max_length=64)], pad=pad_id(base.tokenizer))
    with torch.no_grad():
        return answer_logits(base, batch)[0]


def logits_array(model: Any, ids: Any) -> NDArray[np.float32]:
    """Return the logits as an array of float32."""
    return np.array(logits_of(model, ids).float().numpy())
