"""The base model in training: seeded dropout, checkpointing of activations, torch's generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

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


def generator_states(device: torch.device) -> dict[str, NDArray[np.uint8]]:
    """Return the states of torch's generators, by device: of the CPU, and of `device` where it is a GPU."""
    states: dict[str, NDArray[np.uint8]] = {"cpu": torch.get_rng_state().numpy()}
    if device.type == "cuda":
        states[str(device)] = torch.cuda.get_rng_state(device).numpy()
    return states


def restore_generators(states: Mapping[str, NDArray[np.uint8]]) -> None:
    """Set torch's generators to stored states."""
    for device, stored in states.items():
        state = torch.from_numpy(np.array(stored))
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, torch.device(device))
