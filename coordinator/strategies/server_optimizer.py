"""Optimisers of the coordinator: they take a round's change of the common weights as a gradient.

The pseudo-gradient is the mean of a round minus the weights that it began with (Reddi et al. 2021, Adaptive
Federated Optimization, arXiv 2003.00295). Both optimisers decide each value by itself. Pure.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Floats = NDArray[np.float64]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Momentum(_Options):
    """FedAvgM (Hsu et al. 2019, arXiv 1909.06335): m = beta m + change, and the weights move by rate m.

    With beta 0 and rate 1 the weights become the mean.
    """

    kind: Literal["momentum"] = "momentum"
    """The name of the optimiser."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """The rate by which the weights move. A change that repeats moves them by rate / (1 - beta) of it."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The share of m that remains from round to round."""

    moments: ClassVar[int] = 1

    def start(self) -> Floats:
        """Return the moments of a value before the first step, (1,)."""
        return np.zeros(1)

    def step(self, change: Floats, moments: Floats) -> tuple[Floats, Floats]:
        """Return by how much values move (n,), and their new moments (n, 1), from the change (n,)."""
        m = self.beta * moments[:, 0] + change
        return self.learning_rate * m, m[:, None]


class Adam(_Options):
    """FedAdam (Reddi et al. 2021): the weights move by rate m / (sqrt(v) + tau).

    m = beta1 m + (1 - beta1) change and v = beta2 v + (1 - beta2) change^2, without a correction of their
    start, which is 0 and tau^2.
    """

    kind: Literal["adam"] = "adam"
    """The name of the optimiser."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    """The rate by which the weights move, about the largest move of a value in a round."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The share of m that remains from round to round."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """The share of v that remains from round to round."""
    tau: Annotated[float, Field(gt=0)] = 1e-3
    """The constant added to sqrt(v): values with changes far below it move as with a fixed rate."""

    moments: ClassVar[int] = 2

    def start(self) -> Floats:
        """Return the moments of a value before the first step, (2,)."""
        return np.array([0.0, self.tau**2])

    def step(self, change: Floats, moments: Floats) -> tuple[Floats, Floats]:
        """Return by how much values move (n,), and their new moments (n, 2), from the change (n,)."""
        m = self.beta1 * moments[:, 0] + (1 - self.beta1) * change
        v = self.beta2 * moments[:, 1] + (1 - self.beta2) * change**2
        return self.learning_rate * m / (np.sqrt(v) + self.tau), np.stack([m, v], axis=1)


ServerOptimizer = Momentum | Adam


def _by_name(named: object) -> object:
    if named == "none":
        return None
    return {"kind": named} if isinstance(named, str) else named


def _is_none(optimizer: object) -> bool:
    return optimizer is None


# Left out where there is none, so that older plans keep their digest.
ServerOptimizerOption = Annotated[
    Annotated[ServerOptimizer, Field(discriminator="kind")] | None,
    BeforeValidator(
        _by_name, json_schema_input_type=Literal["none", "momentum", "adam"] | ServerOptimizer | None
    ),
    Field(exclude_if=_is_none),
]
"""An optimiser, its name, or none; stored as an object, so that its meaning is fixed."""
