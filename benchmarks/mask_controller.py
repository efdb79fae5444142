"""A controller that chooses, before each round, the modules of an adapter that train and are sent.

Tessera has no such option (docs/decisions/0052-no-layer-masks.md); the benchmark `layer_masks` compares this
controller with simpler ways to save as many bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from client_agent.adapters.base import require_bare
from client_agent.adapters.frames import first_adapted_layer
from client_agent.adapters.lora import LoraAdapter
from client_agent.model.loading import BaseModel
from schemas.messages.federations import AdapterPlan

EMA = 0.5
HYSTERESIS = 0.1
EXPLORE = 0.1

Mask = frozenset[str]


def module_of(tensor: str) -> str:
    """Return the (layer, role) of a tensor, `l3.v` of `l3.v.A`."""
    return tensor.rpartition(".")[0]


@dataclass(slots=True)
class Salience:
    """The sum of squares of gradient times weight over the steps of a round, by module."""

    squares: dict[str, float] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def measured(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Record the gradients of parameters during the block."""
        hooks = [
            parameter.register_hook(self._recorder(module_of(name), parameter))
            for name, parameter in parameters.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _recorder(self, module: str, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def record(gradient: Tensor) -> None:
            square = float((gradient * parameter.detach()).square().sum())
            self.squares[module] = self.squares.get(module, 0.0) + square
            self.values[module] = self.values.get(module, 0) + gradient.numel()

        return record

    def levels(self) -> dict[str, float]:
        """Return the root mean square of each measured module."""
        return {module: float(np.sqrt(self.squares[module] / self.values[module])) for module in self.squares}


@dataclass(slots=True)
class Controller:
    """The masks of one client: the most salient modules, and a share of those that were out longest.

    `salience` is relative: 1 is the mean of all modules in round 1.

    A module leaves the mask only when another one's salience exceeds its own by the hysteresis. In round 1
    all modules train.
    """

    modules: Sequence[str]
    keep: float
    salience: dict[str, float] = field(default_factory=dict)
    mask: Mask = frozenset()
    last_in: dict[str, int] = field(default_factory=dict)

    def choose(self, round_number: int) -> Mask:
        """Return the mask of a round."""
        if round_number == 1:
            self.mask = frozenset(self.modules)
        else:
            budget = max(1, round(self.keep * len(self.modules)))
            explored = round(EXPLORE * budget)
            scores = {
                module: self.salience.get(module, 0.0) * (1 + HYSTERESIS * (module in self.mask))
                for module in self.modules
            }
            salient = sorted(self.modules, key=scores.__getitem__, reverse=True)[: budget - explored]
            remaining = [module for module in self.modules if module not in salient]
            oldest = sorted(remaining, key=lambda module: self.last_in.get(module, 0))[:explored]
            self.mask = frozenset([*salient, *oldest])
        self.last_in |= dict.fromkeys(self.mask, round_number)
        return self.mask

    def observe(self, levels: Mapping[str, float]) -> None:
        """Smooth the salience of the modules that trained.

        Their levels are divided by a common factor, so that the sum of their saliences stays as it was:
        gradients of all modules shrink as training goes on, and modules outside the mask are not measured.
        """
        if not (total := sum(levels.values())):
            return
        before = sum(self.salience.get(module, 1.0) for module in levels)
        for module, level in levels.items():
            fresh = level / total * before
            self.salience[module] = (1 - EMA) * self.salience.get(module, fresh) + EMA * fresh


def random_mask(modules: Sequence[str], keep: float, round_number: int, key: str) -> Mask:
    """Draw as many modules as the controller chooses, anew for each client and round."""
    if round_number == 1:
        return frozenset(modules)
    draw = random.Random(f"{key}:{round_number}")
    return frozenset(draw.sample(sorted(modules), max(1, round(keep * len(modules)))))


def last_layers(modules: Sequence[str], keep: float, round_number: int) -> Mask:
    """Return the modules of the last layers, as many as the controller chooses."""
    if round_number == 1:
        return frozenset(modules)
    by_layer = sorted(modules, key=_layer_of, reverse=True)
    return frozenset(by_layer[: max(1, round(keep * len(modules)))])


def _layer_of(module: str) -> int:
    return int(module.partition(".")[0][1:])


class MaskedLora(LoraAdapter):
    """An ordinary LoRA of which only the modules of a mask are trained."""

    mask: Mask = frozenset()

    def train_only(self, mask: Iterable[str]) -> None:
        """Freeze the tensors of all other modules, so that the backward pass skips them."""
        self.mask = frozenset(mask)
        for name, parameter in super().named_parameters().items():
            parameter.requires_grad_(module_of(name) in self.mask)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {
            name: parameter
            for name, parameter in super().named_parameters().items()
            if module_of(name) in self.mask
        }

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.named_parameters().values()), "lr": learning_rate}]


def inject_masked(base: BaseModel, plan: AdapterPlan, *, seed: int) -> MaskedLora:
    """Wrap the linear layers of the plan's roles and layers in a LoRA of which nothing is trained yet.

    Raises:
        AdapterInPlace: the base model carries an adapter already.
    """
    require_bare(base)
    base.prefix.split_at(base, first_adapted_layer(base, plan, {}))
    return MaskedLora(base, plan, seed=seed)
