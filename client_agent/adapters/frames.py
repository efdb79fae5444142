"""Hold the frozen A, B between which P and Q live, and make the ones that mean nothing: random frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import LayoutMismatch
from client_agent.model.loading import BaseModel
from schemas.maths.adapter import module_name
from schemas.maths.blocks import block_ends
from schemas.maths.seeded_random import signs
from schemas.messages.federations import AdapterPlan, Role

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
"""Frames by module name (`b0.q`); a (block, role) without one carries no adapter."""


def frame_of(a: NDArray[Any], b: NDArray[Any]) -> Frame:
    """Pair A and B with their rate, sqrt(r) / |B| in the Frobenius norm.

    A step dP moves the output by s B dP z with z = A h, for random signs in proportion to |B| rms(z). A is
    fitted so that z has the pivot's values: |A| is large where it reaches into directions of little variance,
    and says nothing about the step. B is fitted to gradients, and nothing ties its size to the pivot's, whose
    frames are orthonormal: their rate is 1 (docs/decisions/0013).
    """
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    size = float(np.linalg.norm(b.astype(np.float64)))
    return Frame(a, b, rate=sqrt(b.shape[1]) / size if size else 1.0)


def random_frames(base: BaseModel, plan: AdapterPlan, seed: int) -> dict[str, Frame]:
    """Draw A and B of the plan's (block, role)s from the seed: entries +-1/sqrt(d), so that the rate is 1.

    Agents of one base model draw the same frames; those of different ones have nothing in common.
    """
    frames: dict[str, Frame] = {}
    for name, _, role in present_modules(base, plan):
        d_out, d_in = base.shapes[role]
        a = signs((plan.rank, d_in), "frame", seed, name, "A") * np.float32(1 / sqrt(d_in))
        b = signs((d_out, plan.rank), "frame", seed, name, "B") * np.float32(1 / sqrt(d_out))
        frames[name] = Frame(a, b, rate=1.0)
    return frames


def wrapped_layers(base: BaseModel, plan: AdapterPlan) -> tuple[int, ...]:
    """Give the layer that carries each block's adapter: the block's last.

    Raises:
        LayoutMismatch: the model has fewer layers than the plan has blocks.
    """
    try:
        return block_ends(base.layers, plan.blocks)
    except ValueError as error:
        raise LayoutMismatch(
            f"{base.slug} has {base.layers} layers and the plan {plan.blocks} blocks; "
            "use a deeper model, or a plan with fewer blocks"
        ) from error


def present_modules(base: BaseModel, plan: AdapterPlan) -> list[tuple[str, int, Role]]:
    """List name, block and role of the plan's (block, role)s that this architecture has, blocks first."""
    wanted = plan.modules(base.shapes)
    everything = (
        (module_name(block, role), block, role)
        for block in range(plan.blocks)
        for role in present_roles(base, plan)
    )
    return [module for module in everything if module[0] in wanted]


def present_roles(base: BaseModel, plan: AdapterPlan) -> list[Role]:
    """Give the plan's roles that this architecture has, in the plan's order."""
    return [role for role in plan.roles if role in base.shapes]
