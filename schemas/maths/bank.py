"""A bank of experts: names of their tensors, who is summed, and the weights of a round. Both sides. Pure.

An expert is an ordinal that is never used again; 0 is the shared expert, which all clients use. The other
experts are specialists, of which each client uses a few, chosen in private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.maths.adapter import Layout, Shape
from schemas.maths.start import first_a

SHARED: Final = 0
"""The expert that all clients use."""

REJECT: Final = "reject"
"""The group of members whom no expert fits."""

PRIOR_SMOOTHING: Final = 1e-3
"""Added to the sum of responsibilities of each expert, so that none has a prior of zero."""

DRAWS: Final = 2
"""Specialists that a client draws in an exploring round: one is too few where few clients share a task."""

_MOST_EXPLORING_ROUNDS = 10
_GROUP: Final = re.compile(r"x(0|[1-9][0-9]*)")


def group_of(expert: int) -> str:
    """Return the name of an expert's group of members, the prefix of its tensors: 3 -> `x3`."""
    return f"x{expert}"


def expert_of(group: str) -> int | None:
    """Return the expert of a group's name: `x3` -> 3; None = it is no expert's."""
    match = _GROUP.fullmatch(group)
    return int(match[1]) if match is not None else None


def bank_tensor(expert: int, tensor: str) -> str:
    """Return the name of an expert's tensor in a bank: 3, `l0.q.A` -> `x3.l0.q.A`."""
    return f"{group_of(expert)}.{tensor}"


def split_bank_tensor(name: str) -> tuple[int, str] | None:
    """Return the expert and the name of the tensor in its adapter; None = the name is of no bank."""
    group, _, tensor = name.partition(".")
    expert = expert_of(group)
    return (expert, tensor) if expert is not None and tensor else None


def bank_tensors(expert: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of an expert under their names in a bank: `l0.q.A` -> `x2.l0.q.A`."""
    return {bank_tensor(expert, name): value for name, value in tensors.items()}


def expert_tensors(expert: int, bank: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of an expert of a bank under their plain names: `x2.l0.q.A` -> `l0.q.A`."""
    prefix = bank_tensor(expert, "")
    return {name[len(prefix) :]: value for name, value in bank.items() if name.startswith(prefix)}


def bank_layout(layout: Layout, experts: Iterable[int]) -> Layout:
    """Return the layout of a sum: the shared expert's tensors by plain names, then those of each expert."""
    whole = dict(layout)
    for expert in sorted(experts):
        whole |= expert_layout(layout, expert)
    return whole


def expert_layout(layout: Layout, expert: int) -> Layout:
    """Return the layout of one expert under the names of a bank, in the order of `layout`."""
    return {bank_tensor(expert, tensor): shape for tensor, shape in layout.items()}


def specialists_in(layout: Layout) -> tuple[int, ...]:
    """Return the specialists whose tensors a layout of a sum has, in order."""
    places = (split_bank_tensor(name) for name in layout)
    return tuple(sorted({place[0] for place in places if place is not None} - {SHARED}))


def counted_groups(segments: Iterable[str]) -> tuple[str, ...]:
    """Return the groups whose members are counted: one for each expert with a segment, then `reject`.

    `segments` are those of a bank's layout: `A`, `x1.A`, `x1.B`. Without experts there are no groups.
    """
    experts = {expert for name in segments if (expert := expert_of(name.partition(".")[0])) is not None}
    return (*(group_of(expert) for expert in sorted(experts)), REJECT) if experts else ()


def most_chosen(top_m: int) -> int:
    """Return the most specialists that a client trains in a round; `top_m` counts the shared expert too."""
    return max(DRAWS, top_m - 1)


def exploring_rounds(planned: int | None, total_rounds: int) -> int:
    """Return in how many rounds specialists are drawn at random: as planned, or half of all, 10 at most."""
    return min(_MOST_EXPLORING_ROUNDS, total_rounds // 2) if planned is None else planned


def first_a_of(expert: int, tensor: str, shape: Shape, seed: int) -> NDArray[np.float32]:
    """Draw `A` (r, d_in) of an expert, the same on every machine; that of the shared expert is an adapter's.

    Experts begin as equal functions, B = 0, and differ in the direction in which they learn first.
    """
    name = tensor if expert == SHARED else bank_tensor(expert, tensor)
    return first_a(name, shape, seed).reshape(shape)


def manifest(counts: Mapping[str, int], members: int, lost: int, k_min: int) -> frozenset[str]:
    """Return the groups that are summed: {k : counts[k] - lost >= k_min}.

    `counts` has the number of the counted `members` in each group, `lost` the number that is absent by now.
    The members outside of `reject` are none, or `k_min` at least.

    Raises:
        ValueError: `lost` is negative, or `k_min` is not positive.
    """
    if lost < 0 or k_min < 1:
        raise ValueError("lost is at least 0, and k_min at least 1")
    # A smaller group could show the update of one member to the others and to the coordinator. All lost
    # members may have belonged to one group.
    chosen = {group for group, count in counts.items() if count - lost >= k_min}
    # The change by the members outside of `reject` is the whole sum minus that of the group, so that they
    # are a group too.
    outside = members - counts.get(REJECT, 0)
    return frozenset(chosen if not outside or outside - lost >= k_min else chosen - {REJECT})


def number_of_differences(experts: int) -> int:
    """Return how many values a member adds to the differences of its expert, in a bank of `experts`.

    They are 1, d_j of each other expert j by ordinal, then d_j^2 in the same order.
    """
    return 1 + 2 * (experts - 1)


def birth_minimum(members: int, share: float, k_min: int) -> int:
    """Return how many of `members` must reject all experts before a birth: max(k_min, ceil(share N))."""
    # Fewer than `k_min` members could compute each other's change from the newborn.
    return max(k_min, ceil(share * members))


def member_weights(weight: float, responsibilities: Mapping[int, float]) -> dict[int, float]:
    """Return w_ik of a member: w_i for the shared expert, w_i r_ik for each specialist k that it trained.

    `responsibilities` has r_ik in [0, 1] of the trained specialists only. What a member did not train has no
    weight, neither in the numerator nor in the denominator of the M-step.

    Raises:
        ValueError: a responsibility is outside [0, 1], or the shared expert has one.
    """
    if SHARED in responsibilities or not all(0 <= r <= 1 for r in responsibilities.values()):
        raise ValueError("responsibilities are those of specialists, each in [0, 1]")
    return {SHARED: weight} | {expert: weight * r for expert, r in responsibilities.items()}


def m_step(
    values: NDArray[np.float64], summed: NDArray[np.float64], weight: float, rate: float
) -> NDArray[np.float64]:
    """Return theta_k + rate sum_i w_ik delta_ik / sum_i w_ik, over those who trained expert k: (n,).

    Args:
        values: theta_k, (n,).
        summed: sum_i w_ik delta_ik, (n,).
        weight: sum_i w_ik.

    Raises:
        ValueError: the weights sum to nothing, which those of honest members do not.
    """
    if not weight > 0:
        raise ValueError(f"the members' weights sum to {weight:.3g}: a member spoilt the sum")
    return values + rate * summed / weight


def next_prior(prior: Mapping[int, float], sums: Mapping[int, float]) -> dict[int, float]:
    """Return pi of all specialists in `prior` after a round; it sums to 1.

    `sums` has sum_i r_ik of the specialists that were summed. These divide their part of the prior in
    proportion to `sums`. A specialist that was not summed keeps its prior: all that is known of it is that
    it has few members.
    """
    # Rounding at random may leave a sum slightly below zero.
    summed = {expert: max(0.0, sums[expert]) + PRIOR_SMOOTHING for expert in prior if expert in sums}
    part, total = sum(prior[expert] for expert in summed), sum(summed.values())
    changed = {expert: part * value / total for expert, value in summed.items()}
    return normalised({**prior, **changed})


def normalised(prior: Mapping[int, float]) -> dict[int, float]:
    """Return positive weights scaled to a sum of 1; uniform ones if they sum to nothing."""
    total = sum(prior.values())
    if total <= 0:
        return {expert: 1 / len(prior) for expert in prior}
    return {expert: value / total for expert, value in prior.items()}
