"""The conditions under which an adapter was trained, and the check that it is loaded under the same.

P and Q are valid only between their frames, at their scale and around their base model; under others they fit
in shape and compute a different function.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from client_agent.adapters.frames import Frames
from client_agent.errors import ProvenanceMismatch
from schemas.messages.base import BaseModelSlug, Digest, Strict
from schemas.messages.federations import AdapterPlan
from schemas.wire.digests import digest_from_hash

if TYPE_CHECKING:
    from client_agent.model.loading import BaseModel


class Origin(Strict):
    """The inputs that, with its tensors, determine an adapter's function; `precision` is the base model's.

    `frames` is the digest of A and B; `seed` drew them if no alignment pack is in use.
    """

    base_model: BaseModelSlug
    precision: str
    adapter: AdapterPlan
    gated: bool
    seed: int
    frames: Digest


def origin_of(base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool, seed: int) -> Origin:
    from client_agent.model.quantization import precision_of  # imports torch

    return Origin(
        base_model=base.slug,
        precision=precision_of(base.model),
        adapter=plan,
        gated=gated,
        seed=seed,
        frames=_digest(frames),
    )


def require_plan(origin: Origin, plan: AdapterPlan) -> None:
    """Check that a plan describes the adapter that was trained.

    Raises:
        ProvenanceMismatch: a field differs; the order of roles is ignored.
    """
    trained, current = _fields(origin.adapter), _fields(plan)
    different = [
        f"{name} {value}, not {current[name]}" for name, value in trained.items() if value != current[name]
    ]
    if different:
        raise ProvenanceMismatch(
            f"the adapter was trained with {'; '.join(different)}; pass the plan that it was trained with"
        )


def require_same(origin: Origin, current: Origin) -> None:
    """Check that an adapter trained under `origin` computes the same function under `current`.

    Precision is not compared.

    Raises:
        ProvenanceMismatch: base model, adapter, gates or frames differ.
    """
    if origin.base_model != current.base_model:
        raise ProvenanceMismatch(
            f"the adapter was trained on {origin.base_model}, and the model here is {current.base_model}; "
            "set model to the base model that it was trained on"
        )
    require_plan(origin, current.adapter)
    if origin.gated != current.gated:
        raise ProvenanceMismatch(
            f"the adapter was trained {'with' if origin.gated else 'without'} gates, and this plan is "
            f"{'with' if current.gated else 'without'} gates; pass the plan that it was trained with"
        )
    if origin.frames != current.frames:
        seeds = f"seed {origin.seed}, not {current.seed}; " if origin.seed != current.seed else ""
        raise ProvenanceMismatch(
            f"the adapter was trained with different frames ({seeds}{origin.frames[:19]}, not "
            f"{current.frames[:19]}); use the same training.seed and the same alignment pack, or no pack"
        )


def _fields(plan: AdapterPlan) -> dict[str, object]:
    """Return the fields that determine the function; roles and modules sorted, as their order does not."""
    modules = ", ".join(sorted(plan.target_modules)) if plan.target_modules is not None else None
    # Dropout acts in training only.
    fields = {name: getattr(plan, name) for name in type(plan).model_fields if name != "dropout"}
    return {**fields, "roles": ", ".join(sorted(plan.roles)), "target_modules": modules}


def _digest(frames: Frames) -> str:
    digest = hashlib.sha256()
    for name, frame in sorted(frames.items()):
        for factor in (frame.A, frame.B):
            digest.update(f"{name} {factor.shape}".encode())
            digest.update(np.ascontiguousarray(factor, np.float32).tobytes())
    return digest_from_hash(digest.hexdigest())
