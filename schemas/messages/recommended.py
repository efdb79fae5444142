"""Recommended plan settings per strategy: the best of the comparisons in docs/log.md.

The defaults of a plan are part of the HTTP contract and independent of the strategy (docs/decisions/0017).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from schemas.messages.federations import ALL_ROLES

Table = dict[str, JsonValue]

LORA_STRATEGIES: Final = ("ffa_lora", "fedsa_lora", "lora_fair", "fedex_lora", "flora", "het_lora")
"""Baselines with ordinary LoRA, shared between clients of one base model."""

SAME_ARCHITECTURE_RANK: Final = 8
"""Rank of the shared LoRA beside P and Q."""

LORA: Final[Table] = {
    "adapter": {"kind": "lora", "rank": 16, "roles": list(ALL_ROLES)},
    "training": {"learning_rate": 0.003},
}
"""Ordinary LoRA on every layer and all roles."""

CA_PFL: Final[Table] = {
    "strategy": {"name": "ca_pfl"},
    "adapter": {"kind": "lora", "rank": 8, "scale": 16.0, "roles": ["q", "v"]},
    "training": {"learning_rate": 0.001},
    "wire": {"recipe": {"reference": "served", "density": 0.9, "values": "int8"}},
}
"""The published adapter; the density is the maximum of a warm-up round."""

# A LoRA of models of 8B and more exceeds the plan's default limit.
_LIMITS: Final[Table] = {"max_update_bytes": 256 * 2**20}

# q and k gain little from few examples and cost much: measured in docs/log.md.
FEDMOSAIC: Final[Table] = {
    "adapter": {"roles": ["v", "o", "gate", "up", "down"], "same_architecture_rank": SAME_ARCHITECTURE_RANK}
}
"""P and Q for all clients, and a LoRA for clients of the identical base model."""

_BY_STRATEGY: Final[Mapping[str, Table]] = {
    "fedmosaic": {**FEDMOSAIC, "limits": _LIMITS},
    "fedavg": {**FEDMOSAIC, "limits": _LIMITS},
    "ca_pfl": CA_PFL,
    **{name: {**LORA, "limits": _LIMITS} for name in LORA_STRATEGIES},
}


def recommended(strategy: str) -> Table:
    """Return the recommended parts of a plan for a strategy; empty for an unknown one."""
    return copy.deepcopy(_BY_STRATEGY.get(strategy, {}))
