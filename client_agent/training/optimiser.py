"""The optimiser of local training, AdamW with moments in 32 or 8 bits, and its state between rounds.

The stored state is the same for both: moments in float32. So a silo may change the setting between rounds.
8-bit moments are quantised again when they are restored; they change by at most 1% of the largest in a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.adapters.base import Adapter
from client_agent.errors import LayoutMismatch, SettingsUnusable
from client_agent.settings import OptimizerName
from schemas.messages.federations import TrainingPlan

OptimiserState = dict[str, NDArray[np.float32]]
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_BLOCK = 256  # entries that share a scale, as the 8-bit optimiser has it


def build_optimiser(
    name: OptimizerName, adapter: Adapter, *, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Build the optimiser of a setting for an adapter.

    Raises:
        SettingsUnusable: the setting is `adamw8bit`, and bitsandbytes cannot be loaded.
    """
    groups = adapter.parameter_groups(learning_rate)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=weight_decay)
    make = cast(Callable[..., torch.optim.Optimizer], _bitsandbytes().optim.AdamW8bit)
    return make(groups, lr=learning_rate, weight_decay=weight_decay)


def require_optimiser(name: OptimizerName) -> None:
    """Raise SettingsUnusable if the optimiser cannot be built here."""
    if name == "adamw8bit":
        _bitsandbytes()


def saved_state(optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> OptimiserState:
    """Return step and moments of every parameter in float32, by `<parameter>.<moment>`."""
    return {
        f"{name}.{moment}": np.array(values.cpu().numpy(), dtype=np.float32)
        for name, parameter in parameters.items()
        if parameter in optimiser.state
        for moment, values in zip(_MOMENTS, _moments(optimiser.state[parameter]), strict=True)
    }


def restore_state(
    optimiser: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    state: Mapping[str, NDArray[np.float32]],
) -> None:
    """Set the state of `saved_state`, whichever of the optimisers it came from; nothing if it is empty.

    Raises:
        LayoutMismatch: it belongs to another adapter.
    """
    expected = {f"{name}.{moment}" for name in parameters for moment in _MOMENTS}
    if state and expected != state.keys():
        raise LayoutMismatch("the optimiser's state belongs to another adapter; delete it to start again")
    places = _places(optimiser)
    for name, parameter in parameters.items() if state else ():
        step, *moments = (torch.from_numpy(np.array(state[f"{name}.{moment}"])) for moment in _MOMENTS)
        if moments[0].shape != parameter.shape:
            raise LayoutMismatch(
                f"the optimiser's state of {name} has another shape; delete it to start again"
            )
        on_device = [moment.to(parameter.device) for moment in moments]
        # bitsandbytes has its own names and layout of the state.
        if isinstance(optimiser, torch.optim.AdamW):
            optimiser.state[parameter] = {"step": step, **dict(zip(_MOMENTS[1:], on_device, strict=True))}
        else:
            _restore_8bit(cast(Any, optimiser), parameter, places[parameter], int(step), on_device)


def _moments(state: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return step and both moments in float32, dequantised if they are in 8 bits."""
    if "exp_avg" in state:
        return state["step"], state["exp_avg"], state["exp_avg_sq"]
    step = torch.tensor(float(state["step"]))
    first, second = (_dequantised(state, number) for number in (1, 2))
    return step, first, second


def _dequantised(state: Mapping[str, Any], number: int) -> Tensor:
    codes = cast(Tensor, state[f"state{number}"])
    if codes.dtype != torch.uint8:  # small tensors stay in 32 bits
        return codes
    dequantise = cast(Callable[..., Tensor], torch.ops.bitsandbytes.dequantize_blockwise)
    return dequantise(codes, state[f"absmax{number}"], state[f"qmap{number}"], _BLOCK, torch.float32)


def _restore_8bit(
    optimiser: Any, parameter: nn.Parameter, place: tuple[int, int], step: int, moments: list[Tensor]
) -> None:
    """Set a parameter's state in an 8-bit optimiser, which builds its buffers itself."""
    group, index = place
    # The library decides by itself which tensors are in 8 bits, and builds its tables here.
    optimiser.init_state(optimiser.param_groups[group], parameter, group, index)
    state = optimiser.state[parameter]
    state["step"] = step
    quantise = cast(Callable[..., tuple[Tensor, Tensor]], torch.ops.bitsandbytes.quantize_blockwise)
    for number, values in enumerate(moments, start=1):
        if state[f"state{number}"].dtype == torch.uint8:
            codes, scales = quantise(values, state[f"qmap{number}"], _BLOCK)
            state[f"state{number}"].copy_(codes.view(values.shape))
            state[f"absmax{number}"].copy_(scales)
        else:
            state[f"state{number}"].copy_(values)


def _places(optimiser: torch.optim.Optimizer) -> dict[Tensor, tuple[int, int]]:
    """Return the number of the group and the number in it of every parameter."""
    return {
        parameter: (group, index)
        for group, options in enumerate(optimiser.param_groups)
        for index, parameter in enumerate(options["params"])
    }


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes  # slow to import, and needed for this setting only
    except (ImportError, OSError, RuntimeError) as error:
        raise SettingsUnusable(
            f"optimizer: adamw8bit needs bitsandbytes, which cannot be loaded ({error}); set it to adamw"
        ) from error
    return bitsandbytes


def learning_rate_factor(step: int, plan: TrainingPlan, total_steps: int) -> float:
    """Return the factor of the learning rate at a step (from 0) of all `total_steps` of the federation.

    A linear warm-up over `plan.warmup_steps` is followed by the decay to `plan.schedule_floor`.
    """
    # From the first step above zero, which would learn nothing.
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
