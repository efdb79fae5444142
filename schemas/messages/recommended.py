"""What is recommended for each strategy where nobody says otherwise: the settings that won in comparisons.

A plan's own defaults are part of the HTTP contract and know no strategy (docs/decisions/0017).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from schemas.messages.federations import ALL_ROLES

Table = dict[str, JsonValue]

LORA_STRATEGIES: Final = ("ffa_lora", "fedsa_lora", "lora_fair", "fedex_lora", "flora", "het_lora")
"""Baselines for ordinary LoRA, which they share inside each base model."""

SAME_ARCHITECTURE_RANK: Final = 8
"""Of the LoRA beside P and Q."""

LORA: Final[Table] = {
    "adapter": {"kind": "lora", "rank": 16, "roles": list(ALL_ROLES)},
    "training": {"learning_rate": 0.003},
}
"""An ordinary LoRA of usual rank and rate, on every layer and all roles."""

CA_PFL: Final[Table] = {
    "strategy": {"name": "ca_pfl"},
    "adapter": {"kind": "lora", "rank": 8, "scale": 16.0, "roles": ["q", "v"]},
    "training": {"learning_rate": 0.001},
    "wire": {"recipe": {"reference": "served", "density": 0.9, "values": "int8"}},
}
"""The published adapter; the recipe's density is the most that a round of the warm-up sends."""

# A LoRA of models of 8B and more is larger than a plan's default lets pass.
_LIMITS: Final[Table] = {"max_update_bytes": 256 * 2**20}

# q and k carry little that a few examples can teach, and cost them much: docs/log.md has both.
FEDMOSAIC: Final[Table] = {
    "adapter": {"roles": ["v", "o", "gate", "up", "down"], "same_architecture_rank": SAME_ARCHITECTURE_RANK}
}
"""P and Q for everybody, beside a LoRA for those of the identical base model."""

_BY_STRATEGY: Final[Mapping[str, Table]] = {
    "fedmosaic": {**FEDMOSAIC, "limits": _LIMITS},
    "fedavg": {**FEDMOSAIC, "limits": _LIMITS},
    "ca_pfl": CA_PFL,
    **{name: {**LORA, "limits": _LIMITS} for name in LORA_STRATEGIES},
}


def recommended(strategy: str) -> Table:
    """Give the parts of a plan that are recommended for a strategy; nothing for an unknown one."""
    return copy.deepcopy(_BY_STRATEGY.get(strategy, {}))
