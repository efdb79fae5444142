"""The summed vector of a round: its segments and clips, which both sides compute from plan and layout.

Tensors of one factor (A, B, P, Q) make up one segment, in layout order. The sum of the members' weights and
the sums of their losses follow as segments of their own, then the groups that were counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from schemas.identity.documents import hash_of
from schemas.maths.adapter import Layout, factor_of
from schemas.maths.bank import (
    REJECT,
    SHARED,
    expert_of,
    group_of,
    number_of_differences,
    split_bank_tensor,
)
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import Segment
from schemas.messages.sum_plan import SecureSumPlan
from schemas.messages.updates import BankIndex
from schemas.secure_sum.encoding import CLIP_UNIT
from schemas.wire.digests import digest_from_hash

WEIGHT, SCORES = "weight", "scores"
RESPONSIBILITY = "responsibility"
DIFFERENCES = "differences"
"""What other experts would cost the members of one: `number_of_differences` values, in units of 1."""

NEW = "new"
"""The prefix of the segments of a birth: what the members of `reject` learnt of the shared expert."""

SUMMED_SCORES = ("served", "trained")
"""The losses that a member adds to the segment `scores`, in order."""

_LARGEST_SEARCHED_RATE = 0.03
_LARGEST_LOSS = 16.0  # nats per token; a model that knows nothing of 262,144 tokens has 12.5

Values = NDArray[np.float32]


def segments_of(plan: FederationPlan, layout: Layout, groups: Collection[str] = ()) -> tuple[Segment, ...]:
    """Return the segments of a round's sum under a plan with `privacy.secure_sum`.

    `groups` are those that are summed, after counts. An expert's tensors, `x3.l0.q.A`, make up segments of
    its group, `x3.A`, followed by the sums of its members' weights w_ik and responsibilities r_ik, and of
    what each other expert would cost them. With the group `reject`, what its members learnt of the shared
    expert is summed once more, as `new.A`.

    Raises:
        ValueError: the plan has no secure sum.
    """
    summed = plan.privacy.secure_sum
    if summed is None:
        raise ValueError("the plan has no privacy.secure_sum")
    clip = _in_units(_clip(plan, summed))
    sizes: dict[str, int] = {}
    for tensor, shape in layout.items():
        sizes[segment_of(tensor)] = sizes.get(segment_of(tensor), 0) + prod(shape)
    shared = sorted(name for name in sizes if not is_of_expert(name))
    segments = [Segment(name=factor, values=sizes[factor], clip=clip) for factor in shared]
    if summed.weigh_up_to is not None:
        segments.append(Segment(name=WEIGHT, values=1, clip=_in_units(1.0)))
    if summed.scores == "summed":
        segments.append(Segment(name=SCORES, values=len(SUMMED_SCORES), clip=_in_units(_LARGEST_LOSS)))
    # Sorted below: both sides must find the same segments in the same order.
    experts = {expert for name in sizes if (expert := _expert_of(name)) is not None}
    for expert in sorted(experts):
        group = group_of(expert)
        if group in groups:
            factors = {name: sizes[name] for name in sorted(sizes) if _expert_of(name) == expert}
            segments += _group_segments(group, group, factors, clip, (WEIGHT, RESPONSIBILITY))
            if len(experts) > 1:
                name, values = f"{group}.{DIFFERENCES}", number_of_differences(len(experts))
                segments.append(Segment(name=name, values=values, group=group, clip=_in_units(1.0)))
    if REJECT in groups:
        copies = {f"{NEW}.{factor}": sizes[factor] for factor in shared}
        segments += _group_segments(REJECT, NEW, copies, clip, (WEIGHT,))
    return tuple(segments)


def segment_of(tensor: str) -> str:
    """Return the segment of a tensor: `l0.q.A` -> `A`, of an expert `x3.l0.q.A` -> `x3.A`."""
    place = split_bank_tensor(tensor)
    if place is None or place[0] == SHARED:
        return factor_of(tensor)
    return f"{group_of(place[0])}.{factor_of(tensor)}"


def is_of_expert(segment: str) -> bool:
    """Whether a segment is one of a specialist: `x3.A`."""
    return _expert_of(segment) is not None


def values_of_segment(state: Mapping[str, Values], layout: Layout, segment: str) -> Values:
    """Return the values of all tensors of one segment, (n,), in layout order."""
    parts = [np.ravel(state[tensor]) for tensor in layout if segment_of(tensor) == segment]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def values_digest(state: Mapping[str, Values], layout: Layout) -> str:
    """Return the digest of an adapter's values: dense little-endian float32 in layout order, without a head.

    It is the same for all clients that were served the same values.
    """
    hasher = sha256()
    for tensor in layout:
        hasher.update(np.ascontiguousarray(state[tensor], "<f4").tobytes())
    return digest_from_hash(hasher.hexdigest())


def bank_digest(values: str, bank: BankIndex | None) -> str:
    """Return the digest of what all clients of a round were served: common values, and experts if any.

    `values` is the digest of the common values (`values_digest`).
    """
    if bank is None:
        return values
    return hash_of({"values": values, "experts": [[entry.expert, entry.digest] for entry in bank.experts]})


def _group_segments(
    group: str, prefix: str, factors: Mapping[str, int], clip: int, numbers: Collection[str]
) -> list[Segment]:
    values = [Segment(name=name, values=size, group=group, clip=clip) for name, size in factors.items()]
    unit = _in_units(1.0)
    return values + [Segment(name=f"{prefix}.{name}", values=1, group=group, clip=unit) for name in numbers]


def _expert_of(segment: str) -> int | None:
    group, _, factor = segment.partition(".")
    return expert_of(group) if factor else None


def _clip(plan: FederationPlan, summed: SecureSumPlan) -> float:
    """Return the largest change of a value that is sent."""
    if summed.clip is not None:
        return summed.clip
    rate = plan.training.learning_rate
    # AdamW moves a value by about its learning rate in a step.
    return plan.training.steps * (_LARGEST_SEARCHED_RATE if rate == "auto" else rate)


def _in_units(clip: float) -> int:
    return max(1, ceil(clip / CLIP_UNIT))
