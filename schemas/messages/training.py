"""The parts of a plan that say how clients train and how they score their models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.messages.base import Strict

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class TrainingPlan(Strict):
    """Local training of every client in one round.

    `learning_rate` `auto`: each client searches for its own rate before its first round. `schedule` and
    `warmup_steps` count the steps of all rounds; the rate falls to `schedule_floor` times `learning_rate`.
    """

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 8
    learning_rate: Positive | Literal["auto"] = "auto"
    max_length: Annotated[int, Field(ge=2, le=1_048_576)] = 512
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    schedule_floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    accumulation: Annotated[int, Field(ge=1, le=65536)] = 1
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive | None = 1.0
    gradient_checkpointing: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class ScoresPlan(Strict):
    """How clients score their models on held-out examples.

    At most `examples` examples are scored, chosen by digest. `new_tokens` limits generated answers, for the
    scores that need them; 0 = nothing is generated.
    """

    examples: Count = 256
    new_tokens: Annotated[int, Field(ge=0, le=4096)] = 64
