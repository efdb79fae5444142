"""Say what an adapter was trained under, so that its tensors are never put back under anything else.

P and Q mean what they mean between their own frames, at their own scale and around their own base model;
under others they fit just as well and do something else. Knows no file and no round.
"""

from __future__ import annotations

import hashlib

import numpy as np

from client_agent.adapters.frames import Frames
from client_agent.errors import TrainedUnderAnother
from client_agent.model.loading import BaseModel
from client_agent.model.quantization import precision_of
from schemas.messages.base import BaseModelSlug, Digest, Strict
from schemas.messages.federations import AdapterPlan
from schemas.wire.digests import digest_from_hash


class Origin(Strict):
    """What an adapter's function hangs on beside its own tensors; `precision` is the base model's.

    `frames` names A and B; `seed` drew them where no alignment pack gave them.
    """

    base_model: BaseModelSlug
    precision: str
    adapter: AdapterPlan
    gated: bool
    seed: int
    frames: Digest


def origin_of(base: BaseModel, plan: AdapterPlan, frames: Frames, *, gated: bool, seed: int) -> Origin:
    """Say what an adapter that is injected so is trained under."""
    return Origin(
        base_model=base.slug,
        precision=precision_of(base.model),
        adapter=plan,
        gated=gated,
        seed=seed,
        frames=_digest(frames),
    )


def require_plan(origin: Origin, plan: AdapterPlan) -> None:
    """Make sure that a plan's adapter is the one that was trained.

    Raises:
        TrainedUnderAnother: a field differs; roles may come in another order.
    """
    there, here = (_fields(one) for one in (origin.adapter, plan))
    different = [f"{name} {there[name]}, not {here[name]}" for name in there if there[name] != here[name]]
    if different:
        raise TrainedUnderAnother(
            f"the adapter was trained with {'; '.join(different)}: give the plan that it was trained under"
        )


def require_same(origin: Origin, here: Origin) -> None:
    """Make sure that what was trained under `origin` does the same under `here`, in whatever precision.

    Raises:
        TrainedUnderAnother: base model, adapter, gates or frames differ.
    """
    if origin.base_model != here.base_model:
        raise TrainedUnderAnother(
            f"the adapter was trained on {origin.base_model}, and the model here is {here.base_model}: "
            "set model to the one that it was trained on"
        )
    require_plan(origin, here.adapter)
    if origin.gated != here.gated:
        raise TrainedUnderAnother(
            "the adapter was trained with gates, and here are none, or the other way round: give the plan "
            "that it was trained under"
        )
    if origin.frames != here.frames:
        seeds = f"seed {origin.seed}, not {here.seed}; " if origin.seed != here.seed else ""
        raise TrainedUnderAnother(
            f"the adapter was trained between other frames ({seeds}{origin.frames[:19]}, not "
            f"{here.frames[:19]}): give the same training.seed and the same alignment pack, or neither pack"
        )


def _fields(plan: AdapterPlan) -> dict[str, object]:
    """Give the fields of a plan; the order in which it lists roles and modules means nothing."""
    modules = ", ".join(sorted(plan.target_modules)) if plan.target_modules is not None else None
    return {**plan.model_dump(), "roles": ", ".join(sorted(plan.roles)), "target_modules": modules}


def _digest(frames: Frames) -> str:
    digest = hashlib.sha256()
    for name, frame in sorted(frames.items()):
        for factor in (frame.A, frame.B):
            digest.update(f"{name} {factor.shape}".encode())
            digest.update(np.ascontiguousarray(factor, np.float32).tobytes())
    return digest_from_hash(digest.hexdigest())
