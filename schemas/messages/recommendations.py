"""Recommended plan settings per strategy: the best of the comparisons in docs/lab-notes/methods.md.

The defaults of a plan are part of the HTTP contract and independent of the strategy (docs/decisions/0017).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from schemas.messages.federations import ALL_ROLES

Table = dict[str, JsonValue]

LORA_STRATEGIES: Final = (
    "fedprox",
    "ffa_lora",
    "fedsa_lora",
    "lora_fair",
    "fedex_lora",
    "flora",
    "het_lora",
    "ditto",
)
"""Baselines with ordinary LoRA, shared between clients of one base model."""

SAME_ARCHITECTURE_RANK: Final = 8
"""Rank of the shared LoRA beside P and Q."""

SCHEDULE: Final[Table] = {"training": {"schedule": "linear"}}
"""A learning rate that falls to zero over the rounds: at a constant rate local steps overshoot, and the last
mixtures are worse than earlier ones (docs/decisions/0074)."""

LORA: Final[Table] = {
    "adapter": {"kind": "lora", "rank": 16, "roles": list(ALL_ROLES)},
}
"""Ordinary LoRA on every layer and all roles: for federations of one base model."""

CA_PFL: Final[Table] = {
    "strategy": {"name": "ca_pfl"},
    "adapter": {"kind": "lora", "rank": 8, "scale": 16.0, "roles": ["q", "v"]},
    "wire": {
        "recipe": {"reference": "served", "density": 0.9, "values": "int8"},
        "weights_recipe": "int8",
    },
}
"""The published adapter; the density is the maximum of a warm-up round. Weights come down as differences, as
they would be dense otherwise (docs/decisions/0053)."""

# A LoRA of models of 8B and more exceeds the plan's default limit.
_LIMITS: Final[Table] = {"max_update_bytes": 256 * 2**20}

# q and k gain little from few examples and cost much: measured in docs/lab-notes/methods.md.
_MIXED_ROLES: Final[list[JsonValue]] = ["v", "o", "gate", "up", "down"]

FEDMOSAIC: Final[Table] = {
    "adapter": {"roles": _MIXED_ROLES, "same_architecture_rank": SAME_ARCHITECTURE_RANK}
}
"""P and Q for all clients, and a LoRA for clients of the identical base model: for several base models."""

_MEMBERS_OF_A_SUM = 5
# What a strategy that works on sums alone needs in its plan.
_SUMS: Final[Table] = {
    "privacy": {"secure_sum": {"masking": "pairwise", "minimum": _MEMBERS_OF_A_SUM}},
    "rounds": {"min_clients": _MEMBERS_OF_A_SUM},
    "limits": _LIMITS,
}

_ONE_BASE_MODEL: Final[Mapping[str, Table]] = {
    "ca_pfl": CA_PFL,
    "fed_vemoe": {**LORA, **_SUMS},
    **{name: {**LORA, "limits": _LIMITS} for name in ("fedmosaic", "fedavg", *LORA_STRATEGIES)},
}
_ALIGNED: Final[Mapping[str, Table]] = {
    "fed_vemoe": {"adapter": {"roles": _MIXED_ROLES}, **_SUMS},
    **{name: {**FEDMOSAIC, "limits": _LIMITS} for name in ("fedmosaic", "fedavg")},
}


def recommended(strategy: str, *, aligned: bool) -> Table:
    """Return the recommended parts of a plan for a strategy; empty for an unknown one.

    Args:
        aligned: whether P and Q are shared, as federations of several base models do; where a strategy has
            no such recommendation, that of one base model is returned.
    """
    unaligned = _ONE_BASE_MODEL.get(strategy, {})
    parts = _ALIGNED.get(strategy, unaligned) if aligned else unaligned
    # A copy, since callers change the parts of their plan.
    return copy.deepcopy({**parts, **SCHEDULE} if parts else {})


def completed(plan: Mapping[str, JsonValue]) -> Table:
    """Return a plan with the recommended fields of its strategy where the plan names none.

    A field that the plan has, null included, stays as it is. Parts that are not objects, and a plan without
    a strategy's name, are left for validation.
    """
    strategy = plan.get("strategy")
    name = strategy.get("name") if isinstance(strategy, Mapping) else None
    parts = recommended(name, aligned=_is_aligned(plan)) if isinstance(name, str) else {}
    filled: Table = dict(plan)
    for part, fields in parts.items():
        planned = plan.get(part, {})
        if isinstance(planned, Mapping) and isinstance(fields, Mapping):
            filled[part] = {**({} if _is_other_adapter(part, planned, fields) else fields), **planned}
    return filled


def _is_aligned(plan: Mapping[str, JsonValue]) -> bool:
    """Whether a plan asks for P and Q."""
    adapter = plan.get("adapter")
    fields = adapter if isinstance(adapter, Mapping) else {}
    named = {"same_architecture_rank", "target_modules"} & fields.keys()
    return plan.get("alignment") is not None or bool(named) or fields.get("kind") == "pq"


def _is_other_adapter(part: str, planned: Mapping[str, JsonValue], fields: Mapping[str, JsonValue]) -> bool:
    """Whether a plan has another kind of adapter, to which the recommended ranks and roles do not apply."""
    return part == "adapter" and planned.get("kind", fields.get("kind")) != fields.get(
        "kind", planned.get("kind")
    )
