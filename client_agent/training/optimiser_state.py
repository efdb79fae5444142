"""Copy AdamW's state to arrays by parameter name, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.errors import LayoutMismatch

OptimiserState = dict[str, NDArray[np.float32]]
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def read_moments(optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> OptimiserState:
    """Copy AdamW's state of every trained parameter, as `<parameter>.<moment>`."""
    return {
        f"{name}.{moment}": np.array(optimiser.state[parameter][moment].cpu().numpy(), dtype=np.float32)
        for name, parameter in parameters.items()
        if parameter in optimiser.state
        for moment in _MOMENTS
    }


def restore_moments(
    optimiser: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    state: Mapping[str, NDArray[np.float32]],
) -> None:
    """Set the state that `read_moments` returned; an empty one leaves the optimiser new.

    Raises:
        LayoutMismatch: it belongs to another adapter.
    """
    expected = {f"{name}.{moment}" for name in parameters for moment in _MOMENTS}
    if state and expected != state.keys():
        raise LayoutMismatch("the optimiser's state belongs to another adapter; delete it to start anew")
    for name, parameter in parameters.items() if state else ():
        tensors = {moment: torch.from_numpy(np.array(state[f"{name}.{moment}"])) for moment in _MOMENTS}
        if tensors["exp_avg"].shape != parameter.shape:
            raise LayoutMismatch(
                f"the optimiser's state of {name} has another shape; delete it to start anew"
            )
        optimiser.state[parameter] = {
            "step": tensors["step"],
            **{moment: tensors[moment].to(parameter.device) for moment in _MOMENTS[1:]},
        }
