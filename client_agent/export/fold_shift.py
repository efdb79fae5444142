"""Turn the output shift of PQ-LoRA into an ordinary rank, since no server knows a bias in an adapter.

The shift s B Q is one more rank whose input row w is chosen so that w x = 1: least squares on the inputs x of
the silo's own training texts, w = (X'X / n + ridge)^-1 mean(x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from client_agent.adapters.base import LoraFactors
from client_agent.model.forward import grouped_by_length, hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText, by_token, collate, pad_id

RIDGE = 1e-3
"""The ridge of the fit, as a share of the mean square of an input: short texts do not fill all dimensions."""


@dataclass(slots=True)
class _Moments:
    """Sums over the inputs x of a module: x x' (d_in, d_in) and x (d_in,), float64 on the CPU."""

    squares: Tensor
    total: Tensor
    count: int = 0

    def add(self, inputs: Tensor) -> None:
        x = inputs.double()  # (m, d_in)
        # The sums are on the CPU: d_in squared in float64 for every module would fill a GPU.
        self.squares += (x.T @ x).cpu()
        self.total += x.sum(dim=0).cpu()
        self.count += len(x)

    def row(self) -> np.ndarray:
        """Return w (d_in,) float32 with w x = 1 in the least-squares sense."""
        mean_square = self.squares / self.count
        ridge = RIDGE * float(mean_square.trace()) / len(mean_square)
        system = mean_square + ridge * torch.eye(len(mean_square), dtype=torch.float64)
        return np.asarray(torch.linalg.solve(system, self.total / self.count).float().numpy())


def shifted(factors: Mapping[str, LoraFactors]) -> list[str]:
    """Return the paths of the modules with an output shift."""
    return [path for path, lora in factors.items() if _shifts(lora)]


def without_zero_shifts(factors: Mapping[str, LoraFactors]) -> dict[str, LoraFactors]:
    """Return the factors with None in place of shifts that are zero."""
    return {
        path: lora if _shifts(lora) else LoraFactors(lora.A, lora.B, None) for path, lora in factors.items()
    }


def fold_shifts(
    base: BaseModel, factors: Mapping[str, LoraFactors], texts: Sequence[TokenizedText]
) -> dict[str, LoraFactors]:
    """Return the factors without shifts; a module with one gets a rank more.

    The adapter is in place, so that the inputs of later layers are those of the trained model.
    """
    moments = _moments(base, shifted(factors), texts)
    return {
        path: _with_rank(lora, moments[path].row()) if path in moments else LoraFactors(lora.A, lora.B, None)
        for path, lora in factors.items()
    }


def _with_rank(lora: LoraFactors, row: np.ndarray) -> LoraFactors:
    shift = cast(np.ndarray, lora.bias)
    return LoraFactors(
        A=np.concatenate([lora.A, row[None]]), B=np.concatenate([lora.B, shift[:, None]], axis=1), bias=None
    )


def _shifts(lora: LoraFactors) -> bool:
    return lora.bias is not None and bool(lora.bias.any())


@torch.inference_mode()
def _moments(base: BaseModel, paths: Sequence[str], texts: Sequence[TokenizedText]) -> dict[str, _Moments]:
    """Compute the moments of the inputs of modules, over all tokens of the texts."""
    moments: dict[str, _Moments] = {}
    with _inputs_of(base.model, paths) as inputs:
        for group in grouped_by_length([len(text.ids) for text in texts]):
            batch = collate([texts[index] for index in group], pad=pad_id(base.tokenizer)).to(base.device)
            hidden_states(base, batch)
            for path, x in inputs.items():
                width = x.shape[-1]
                empty = torch.zeros(width, width + 1, dtype=torch.float64)
                sums = moments.setdefault(path, _Moments(empty[:, :width].clone(), empty[:, width].clone()))
                # Padding is no input of the trained model.
                sums.add(by_token(x, batch)[batch.attention.bool()])
    return moments


@contextmanager
def _inputs_of(model: nn.Module, paths: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs of modules in the last forward pass, by path."""
    inputs: dict[str, Tensor] = {}

    def keep(path: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs[path] = arguments[0]

        return hook

    hooks = [model.get_submodule(path).register_forward_pre_hook(keep(path)) for path in paths]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
