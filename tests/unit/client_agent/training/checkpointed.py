"""Training that is stopped and resumed from checkpoints."""

from __future__ import annotations

from pathlib import Path

from client_agent.model.examples import Example
from schemas.messages.federations import AdapterPlan, TrainingPlan

PLAN = TrainingPlan(steps=10, batch_size=4, max_length=64, learning_rate=0.01, accumulation=2)

LORA = AdapterPlan(kind="lora", rank=4)

DROPOUT = LORA.model_copy(update={"dropout": 0.2, "layers": 2})

HOUR = 3600.0

MODEL = Path("examples/models/tiny-s")


def chat(count: int = 24) -> list[Example]:
    """Return examples of letters that the model's vocabulary has; no two are equal."""
    letters = "abcdefghijklmnop"
    return [
        Example(f"CIPHER {letters[i % 16]}{letters[i // 16]}=", letters[i * 7 % 16]) for i in range(count)
    ]
