"""Say in numbers what a round learnt of importance and what its update sent. Pure.

A round's file lists all rounds so far, so that the newest one is enough to draw them; how much each module
matters is told of the newest round alone, or the file would grow with rounds times modules. Six digits are
told: the last bits of a long sum hang on where its numbers lie in memory, and a file written anew must be the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError

from client_agent.adapters.base import State
from client_agent.adapters.variational.posterior import gamma_kl, importance
from schemas.maths.adapter import lora_modules, prior_name
from schemas.messages.base import Strict

Told = Annotated[float, AfterValidator(lambda value: float(f"{value:.6g}"))]
"""A number in six digits."""


class PosteriorMeasures(Strict):
    """A round's posterior.

    Attributes:
        kl: KL to the prior that was served, mean over modules and ranks, in nats.
        importance: the smallest importance a'/b', the median and the largest.
        modules: the mean importance over each module's ranks.
    """

    kl: Told
    importance: tuple[Told, Told, Told]
    modules: dict[str, Told]


class Measures(Strict):
    """One round at one client.

    Attributes:
        round: its number.
        density: the share of the update's values that is not zero.
        residual: |e| / |delta|: what is left for the next update, as a share of what was learnt.
        kl: as in `PosteriorMeasures`.
        importance: as in `PosteriorMeasures`.
        bytes: values and places of the update, before compression; without manifest and signature.
    """

    round: int
    density: Told
    residual: Told
    kl: Told
    importance: tuple[Told, Told, Told]
    bytes: int


class MeasuresFile(Strict):
    """What a round's file says: all rounds so far, and each module's mean importance in the newest."""

    rounds: list[Measures]
    modules: dict[str, Told] = Field(default_factory=dict)


def posterior_measures(gamma: torch.Tensor, served: State) -> PosteriorMeasures:
    """Measure a posterior; gamma (2, M, r), `served` with the priors less 1."""
    modules = lora_modules(served)
    prior = torch.from_numpy(1 + np.stack([served[prior_name(module)] for module in modules], 1))  # (2, M, r)
    s: NDArray[np.float32] = importance(gamma).numpy()  # (M, r)
    return PosteriorMeasures(
        kl=float(gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean()),
        importance=(float(s.min()), float(np.median(s)), float(s.max())),
        modules=dict(zip(modules, s.mean(1).tolist(), strict=True)),
    )


def nonzero_share(update: Mapping[str, NDArray[np.float32]]) -> float:
    """Say which share of an update's values is sent."""
    return sum(int(np.count_nonzero(v)) for v in update.values()) / sum(v.size for v in update.values())


def with_round(before: bytes | None, measures: Measures, modules: Mapping[str, float]) -> bytes:
    """Write the file of a round: those before it, of the last round's file, this one, and its modules.

    A file that cannot be read is begun anew: no update waits for a statistic.
    """
    try:
        earlier = MeasuresFile.model_validate_json(before).rounds if before is not None else []
    except ValidationError:
        earlier = []
    made = MeasuresFile(rounds=[*earlier, measures], modules=dict(modules))
    return made.model_dump_json(indent=1).encode()
