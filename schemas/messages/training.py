"""The parts of a plan that describe how clients train and how they score their models."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Final, Literal

from pydantic import Field

from schemas.messages.base import Strict

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

ANCHOR_PULL: Final = "anchor-pull-1"
"""What the profile of an agent names that trains with `anchor_pull`."""


class TrainingPlan(Strict):
    """Local training of every client in one round."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """The number of optimiser steps per round."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 8
    """The number of texts per forward pass."""
    learning_rate: Positive | Literal["auto"] = "auto"
    """The learning rate of the optimiser; `auto`: each client searches for its own before its first round."""
    max_length: Annotated[int, Field(ge=2, le=1_048_576)] = 512
    """The largest number of tokens of a text; longer ones are shortened."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The shape in which the learning rate falls over the steps of all rounds."""
    schedule_floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of `learning_rate` at which the schedule ends."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """The number of first steps over which the learning rate rises, counted over all rounds."""
    accumulation: Annotated[int, Field(ge=1, le=65536)] = 1
    """The number of batches whose gradients are added before a step."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Positive | None = 1.0
    """The L2 norm to which gradients are clipped; null = not clipped."""
    # Left out of the plan's JSON at 0, so that plans of versions without the field keep their digest.
    anchor_pull: Annotated[float, Field(ge=0, exclude_if=not_)] = 0.0
    """The weight of the divergence from the bare base model on the federation's anchor texts, which is added
    to the loss of each step and bounds forgetting; 0 = none.
    """
    gradient_checkpointing: bool = False
    """Whether activations are recomputed instead of stored, which saves memory and takes longer."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of the adapter's first values and of the order of examples."""


class ScoresPlan(Strict):
    """The scoring of clients' models on held-out examples."""

    examples: Count = 256
    """The largest number of examples that are scored, chosen by digest."""
    new_tokens: Annotated[int, Field(ge=0, le=4096)] = 64
    """The largest number of tokens of a generated answer, for scores that need one; 0 = nothing is
    generated.
    """
