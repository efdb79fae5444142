"""Statistics of a round's importance posterior and of its sparse update. Pure.

A round's file lists all rounds so far, so the newest file is enough to plot them; importance per module is
stored for the newest round only, which bounds the file. Values have six digits: the last bits of a long sum
depend on memory layout, and a rewritten file must be identical.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError, model_validator

from client_agent.adapters.base import State
from client_agent.adapters.variational.posterior import START, gamma_kl, importance
from schemas.maths.adapter import lora_modules, prior_name
from schemas.messages.base import Strict

SixDigits = Annotated[float, AfterValidator(lambda value: float(f"{value:.6g}"))]
"""A float rounded to six significant digits."""


class PosteriorMeasures(Strict):
    """Statistics of a round's posterior.

    Attributes:
        kl: KL to the prior that was served, mean over modules and ranks, in nats.
        importance: the smallest importance a'/b', the median and the largest.
        modules: the mean importance over each module's ranks.
    """

    kl: SixDigits
    importance: tuple[SixDigits, SixDigits, SixDigits]
    modules: dict[str, SixDigits]


class Measures(Strict):
    """Statistics of one round at one client.

    Attributes:
        round: the round number.
        density: the share of the update's values that is not zero.
        residual: |e| / |delta|, the unsent residual relative to the update.
        kl: as in `PosteriorMeasures`.
        importance: as in `PosteriorMeasures`.
        bytes: size of the update's values and indices before compression, without manifest and sketch.
    """

    round: int
    density: SixDigits
    residual: SixDigits
    kl: SixDigits
    importance: tuple[SixDigits, SixDigits, SixDigits]
    bytes: int


class MeasuresFile(Strict):
    """A round's file: statistics of all rounds so far; importance per module of the newest."""

    rounds: list[Measures]
    modules: dict[str, SixDigits] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, file: object) -> object:
        # Files and results of version 0.2.0 have the number of trained ranks of each module (decision 87).
        if not isinstance(file, dict):
            return file
        return {name: value for name, value in file.items() if name != "ranks"}


def posterior_measures(gamma: torch.Tensor, served: State) -> PosteriorMeasures:
    """Compute statistics of a posterior; gamma (2, M, r), `served` holds the priors less `START`."""
    modules = lora_modules(served)
    prior = torch.from_numpy(
        START + np.stack([served[prior_name(module)] for module in modules], 1)
    )  # (2, M, r)
    s: NDArray[np.float32] = importance(gamma).numpy()  # (M, r)
    return PosteriorMeasures(
        kl=float(gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean()),
        importance=(float(s.min()), float(np.median(s)), float(s.max())),
        modules=dict(zip(modules, s.mean(1).tolist(), strict=True)),
    )


def nonzero_share(update: Mapping[str, NDArray[np.float32]]) -> float:
    return sum(int(np.count_nonzero(v)) for v in update.values()) / sum(v.size for v in update.values())


def with_round(before: bytes | None, measures: Measures, modules: Mapping[str, float]) -> bytes:
    """Return the round's file: the rounds of the previous file, this round and its modules.

    An unreadable previous file counts as empty, since statistics must not stop an update.
    """
    try:
        earlier = MeasuresFile.model_validate_json(before).rounds if before is not None else []
    except ValidationError:
        # Statistics must not stop an update.
        earlier = []
    file = MeasuresFile(rounds=[*earlier, measures], modules=dict(modules))
    return file.model_dump_json(indent=1).encode()
