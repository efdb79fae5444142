"""Losses over the rounds of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.messages.base import Strict
from schemas.messages.scores import LOSS
from studies.report.estimates import Estimate, estimate
from studies.report.runs import mean
from studies.results import CellResult, ClientResult


class LossCurve(Strict):
    """Mean test loss over local steps."""

    steps: list[int]
    loss: list[Estimate]


def served_losses(client: ClientResult) -> list[float]:
    """Return the loss at the start of each round, and of the final weights in a federation."""
    losses = [entry.scores.served[LOSS].value for entry in client.rounds]
    return losses if client.final is None else [*losses, client.final.scores[LOSS].value]


def trained_losses(client: ClientResult) -> list[float]:
    """Return the loss before the first local step, and after those of each round."""
    return [
        client.rounds[0].scores.served[LOSS].value,
        *(entry.scores.trained[LOSS].value for entry in client.rounds),
    ]


def served_curve(results: Sequence[CellResult], names: Sequence[str], steps: int) -> LossCurve:
    """Return the mean curve of the served states, which begins with the bare model."""
    return _curve([[served_losses(c) for c in r.clients if c.name in names] for r in results], steps)


def trained_curve(results: Sequence[CellResult], names: Sequence[str], steps: int) -> LossCurve:
    """Return the mean curve of the trained states, which begins before the first step."""
    return _curve([[trained_losses(c) for c in r.clients if c.name in names] for r in results], steps)


def _curve(curves: Sequence[Sequence[Sequence[float]]], steps: int) -> LossCurve:
    """Return the estimates over seeds of the means over clients; `curves` is by seed, client and round."""
    length = min(len(curve) for seed_curves in curves for curve in seed_curves)
    return LossCurve(
        steps=[steps * i for i in range(length)],
        loss=[
            estimate([mean([curve[i] for curve in seed_curves]) for seed_curves in curves])
            for i in range(length)
        ],
    )
