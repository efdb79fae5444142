"""Checks of losses and gradients. torch raises no error for a model that cannot be differentiated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite

from torch import nn

from client_agent.errors import LossNotFinite, MissingGradient


@contextmanager
def require_backward() -> Iterator[None]:
    """Raise `MissingGradient` at an operation without a backward pass.

    torch only warns. Parameters may still get gradients through residuals and adapters, and these are wrong.
    """
    with warnings.catch_warnings():
        # torch only warns, and other parameters still get gradients, which are wrong.
        warnings.filterwarnings("error", ".*an autograd kernel was not registered")
        try:
            yield
        except UserWarning as warning:
            raise MissingGradient(
                f"gradients do not pass through the base model: {str(warning).partition(':')[0]} cannot be "
                "differentiated; load the model again, or without quantization"
            ) from warning


def check_gradients(parameters: Mapping[str, nn.Parameter], loss: float, *, first: bool) -> None:
    """Check the loss of a step, and after the first backward pass that gradients reach all parameters.

    Raises:
        LossNotFinite: the loss is NaN or infinite.
        MissingGradient: there is no parameter, or one has no gradient.
    """
    if not isfinite(loss):
        raise LossNotFinite(
            f"the loss became {loss}; lower learning_rate, or load the base model in float32 or bfloat16"
        )
    if first:
        require_gradients(parameters)


def require_gradients(parameters: Mapping[str, nn.Parameter]) -> None:
    """Check that gradients reach all parameters.

    Raises:
        MissingGradient: there is no parameter, or one has no gradient.
    """
    without = [name for name, parameter in parameters.items() if parameter.grad is None]
    if without or not parameters:
        raise MissingGradient(
            f"no gradient reaches {', '.join(without[:3]) or 'anything'} ({len(without)} of "
            f"{len(parameters)} parameters); check that the adapter is in place and the base model is "
            "differentiable"
        )
