"""The base model in training: seeded dropout, and checkpointing of activations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from client_agent.model.loading import BaseModel
from schemas.messages.federations import TrainingPlan


@contextmanager
def training_mode(base: BaseModel, plan: TrainingPlan, seed: int) -> Iterator[None]:
    """Switch the base model to training (dropout from `seed`, optional checkpointing) and back."""
    model = cast(Any, base.model)
    devices = [base.device] if base.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        model.train()
        if plan.gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
            # The call also makes embeddings require gradients, which only reentrant checkpointing needs: the
            # backward pass would include the layers below every adapter, and the hook would never be removed.
            model.disable_input_require_grads()
        try:
            yield
        finally:
            if plan.gradient_checkpointing:
                model.activation_checkpointing_disable()
            model.eval()
