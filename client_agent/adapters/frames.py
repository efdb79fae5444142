"""The frozen factors A, B of PQ-LoRA: learning rates, random frames, and the modules that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import LayoutMismatch
from schemas.maths.adapter import layer_module_name, module_name
from schemas.maths.blocks import adapted_layers
from schemas.maths.layout import block_layers
from schemas.maths.seeded_random import signs
from schemas.messages.federations import AdapterPlan, Role

if TYPE_CHECKING:
    from client_agent.model.loading import BaseModel

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Frame:
    """The frozen A (r, d_in) and B (d_out, r) of one (block, role), float32.

    `rate` multiplies the learning rate of P and Q.
    """

    A: Array
    B: Array
    rate: float


Frames = Mapping[str, Frame]
"""Frames by module name (`b0.q`); a (block, role) without a frame carries no adapter."""


def frame_of(a: NDArray[Any], b: NDArray[Any]) -> Frame:
    """Pair A and B with their learning-rate factor, sqrt(r) / |B| in the Frobenius norm.

    A step dP moves the output by s B dP z with z = A h, so with random signs in proportion to |B| rms(z). A
    is fitted so that z has the pivot's values; |A| is large along directions of little variance, and does not
    determine the step. B is fitted to gradients, so its norm says nothing about the pivot's. The pivot's
    frames are orthonormal, with rate 1 (docs/decisions/0013).
    """
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    # In float64: the rate is a factor of every step, and must be equal on all machines.
    size = float(np.linalg.norm(b.astype(np.float64)))
    return Frame(a, b, rate=sqrt(b.shape[1]) / size if size else 1.0)


def random_frames(base: BaseModel, plan: AdapterPlan, seed: int) -> dict[str, Frame]:
    """Draw A and B of every (block, role) of the plan from the seed: entries +-1/sqrt(d), so the rate is 1.

    Agents of the same base model draw the same frames; frames of different base models are unrelated.
    """
    frames: dict[str, Frame] = {}
    for name, layer, role in present_modules(base, plan):
        d_out, d_in = base.parts.of(layer, role).shape
        # Signs by integer arithmetic, which are equal on every machine.
        a = signs((plan.rank, d_in), "frame", seed, name, "A") * np.float32(1 / sqrt(d_in))
        b = signs((d_out, plan.rank), "frame", seed, name, "B") * np.float32(1 / sqrt(d_out))
        frames[name] = Frame(a, b, rate=1.0)
    return frames


def wrapped_layers(base: BaseModel, plan: AdapterPlan) -> tuple[int, ...]:
    """Return the index of the layer that carries each block's adapter: the last layer of the block.

    Raises:
        LayoutMismatch: the model lacks a layer of the plan, or has fewer than blocks.
    """
    try:
        return block_layers(plan, base.layers)
    except ValueError as error:
        raise _too_few(base, plan, error) from error


def _too_few(base: BaseModel, plan: AdapterPlan, error: ValueError) -> LayoutMismatch:
    return LayoutMismatch(
        f"{base.slug} cannot carry the plan's adapter ({error}); use a deeper model, or a plan with fewer "
        "adapter.blocks or other adapter.layers"
    )


def present_modules(base: BaseModel, plan: AdapterPlan) -> list[tuple[str, int, Role]]:
    """List (name, layer, role) of every module of the plan that this architecture has, blocks first."""
    ends = wrapped_layers(base, plan)
    sites = {
        module_name(block, role): (layer, role)
        for block, layer in enumerate(ends)
        for role in plan.roles
        if role in base.parts.roles[layer]
    }
    return [(name, *sites[name]) for name in plan.modules(sites)]


def first_adapted_layer(base: BaseModel, plan: AdapterPlan, frames: Frames) -> int:
    """Return the lowest layer of a model that the plan's adapter changes."""
    layers: list[int] = []
    if plan.kind == "pq":
        layers += (layer for name, layer, _ in present_modules(base, plan) if name in frames)
    if plan.kind == "lora" or plan.same_architecture_rank or plan.private_rank:
        layers += (layer for layer, _ in present_layers(base, plan).values())
    return min(layers, default=0)


def present_layers(base: BaseModel, plan: AdapterPlan) -> dict[str, tuple[int, Role]]:
    """Return layer and role of every (layer, role) of the plan that this architecture has.

    Raises:
        LayoutMismatch: the model lacks a layer of the plan.
    """
    try:
        layers = adapted_layers(plan.layers, base.layers)
    except ValueError as error:
        raise _too_few(base, plan, error) from error
    return {
        layer_module_name(layer, role): (layer, role)
        for layer in layers
        for role in plan.roles
        if role in base.parts.roles[layer]
    }
