"""The learning-rate schedule over all rounds of a federation."""

from __future__ import annotations

from math import cos, pi

from schemas.messages.federations import TrainingPlan


def learning_rate_factor(step: int, plan: TrainingPlan, total_steps: int) -> float:
    """Return the factor of the learning rate at a step (from 0) of all `total_steps` of the federation.

    A linear warm-up over `plan.warmup_steps` is followed by the decay to `plan.schedule_floor`.
    """
    warm = min(1.0, (step + 1) / (plan.warmup_steps + 1))
    remaining = min(1.0, max(0.0, (total_steps - step) / max(1, total_steps - plan.warmup_steps)))
    floor = plan.schedule_floor
    match plan.schedule:
        case "constant":
            return warm
        case "linear":
            return min(warm, floor + (1 - floor) * remaining)
        case "cosine":
            return warm * (floor + (1 - floor) * (1 - cos(pi * remaining)) / 2)
