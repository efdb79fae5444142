"""The summed vector of a round: its segments and clips, which both sides compute from plan and layout.

Tensors of one factor (A, B, P, Q) make up one segment, in layout order. The sum of the members' weights and
the sums of their losses follow as segments of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout, factor_of
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import Segment
from schemas.messages.sum_plan import SecureSumPlan
from schemas.secure_sum.encoding import CLIP_UNIT
from schemas.wire.digests import digest_from_hash

WEIGHT, SCORES = "weight", "scores"
SUMMED_SCORES = ("served", "trained")
"""The losses that a member adds to the segment `scores`, in order."""

_LARGEST_SEARCHED_RATE = 0.03
_LARGEST_LOSS = 16.0  # nats per token; a model that knows nothing of 262,144 tokens has 12.5

Values = NDArray[np.float32]


def segments_of(plan: FederationPlan, layout: Layout) -> tuple[Segment, ...]:
    """Return the segments of a round's sum under a plan with `privacy.secure_sum`.

    Raises:
        ValueError: the plan has no secure sum.
    """
    summed = plan.privacy.secure_sum
    if summed is None:
        raise ValueError("the plan has no privacy.secure_sum")
    clip = _in_units(_clip(plan, summed))
    sizes: dict[str, int] = {}
    for tensor, shape in layout.items():
        sizes[factor_of(tensor)] = sizes.get(factor_of(tensor), 0) + prod(shape)
    segments = [Segment(name=factor, values=sizes[factor], clip=clip) for factor in sorted(sizes)]
    if summed.weigh_up_to is not None:
        segments.append(Segment(name=WEIGHT, values=1, clip=_in_units(1.0)))
    if summed.scores == "summed":
        segments.append(Segment(name=SCORES, values=len(SUMMED_SCORES), clip=_in_units(_LARGEST_LOSS)))
    return tuple(segments)


def values_of_factor(state: Mapping[str, Values], layout: Layout, factor: str) -> Values:
    """Return the values of all tensors of one factor, (n,), in layout order."""
    parts = [np.ravel(state[tensor]) for tensor in layout if factor_of(tensor) == factor]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def values_digest(state: Mapping[str, Values], layout: Layout) -> str:
    """Return the digest of an adapter's values: dense little-endian float32 in layout order, without a head.

    It is the same for all clients that were served the same values.
    """
    hasher = sha256()
    for tensor in layout:
        hasher.update(np.ascontiguousarray(state[tensor], "<f4").tobytes())
    return digest_from_hash(hasher.hexdigest())


def _clip(plan: FederationPlan, summed: SecureSumPlan) -> float:
    """Return the largest change of a value: AdamW moves it by about its rate in a step."""
    if summed.clip is not None:
        return summed.clip
    rate = plan.training.learning_rate
    return plan.training.steps * (_LARGEST_SEARCHED_RATE if rate == "auto" else rate)


def _in_units(clip: float) -> int:
    return max(1, ceil(clip / CLIP_UNIT))
