"""Say in numbers what a round learnt of importance and what its update sent. Pure.

A round's file lists all rounds so far, so that the newest one is enough to draw them. Six digits are told:
the last bits of a long sum hang on where its numbers lie in memory, and a file written anew must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.model.adapter import State
from client_agent.variational.posterior import gamma_kl, importance
from schemas.maths.adapter import lora_modules, prior_name


@dataclass(frozen=True, slots=True)
class Measures:
    """One round at one client.

    Attributes:
        round: its number.
        density: the share of the update's values that is not zero.
        residual: |e| / |delta|: what is left for the next update, as a share of what was learnt.
        kl: KL from the posterior to the prior that was served, mean over modules and ranks, in nats.
        importance: the smallest importance, the median and the largest.
        bytes: values and places of the update, before compression; without manifest and signature.
    """

    round: int
    density: float
    residual: float
    kl: float
    importance: tuple[float, float, float]
    bytes: int


def posterior_measures(gamma: torch.Tensor, served: State) -> tuple[float, tuple[float, float, float]]:
    """Give KL and importance of `Measures`; gamma (2, M, r), `served` with the priors less 1."""
    priors = np.stack([served[prior_name(module)] for module in lora_modules(served)], 1)
    prior = torch.from_numpy(1 + priors)  # (2, M, r)
    kl = float(gamma_kl(gamma[0], gamma[1], prior[0], prior[1]).mean())
    s: NDArray[np.float32] = importance(gamma).numpy()
    return kl, (float(s.min()), float(np.median(s)), float(s.max()))


def nonzero_share(update: Mapping[str, NDArray[np.float32]]) -> float:
    """Say which share of an update's values is sent."""
    return sum(int(np.count_nonzero(v)) for v in update.values()) / sum(v.size for v in update.values())


def with_round(before: bytes | None, measures: Measures) -> bytes:
    """Write the file of a round: those before it, of the last round's file, and this one."""
    rounds = json.loads(before)["rounds"] if before is not None else []
    told = {name: _in_short(value) for name, value in asdict(measures).items()}
    return json.dumps({"rounds": [*rounds, told]}, indent=1).encode()


def _in_short(value: float | tuple[float, ...]) -> float | list[float]:
    if isinstance(value, tuple):
        return [float(f"{one:.6g}") for one in value]
    return value if isinstance(value, int) else float(f"{value:.6g}")
