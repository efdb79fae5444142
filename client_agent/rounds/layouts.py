"""The adapter and the layout of a client in a round, from its plan and profile alone. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection

from client_agent.rounds.opened_brief import OpenedBrief
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan


def adapter_plan(opened: OpenedBrief, state: State | None, lora_rank: int | None) -> AdapterPlan:
    """Return the adapter of a client; `state` is its last one, `lora_rank` the silo's first rank, if any."""
    plan = opened.brief.adapter
    for part in opened.parts:
        plan = part.adapter_plan(plan, state, lora_rank)
    return plan


def sent_layout(
    opened: OpenedBrief,
    profile: Profile,
    framed: Collection[str] | None,
    state: State | None,
    lora_rank: int | None,
) -> Layout:
    """Return the layout of what a client sends in a round.

    Args:
        framed: the (block, role)s that have frames; None = every one of the plan, or adapters without frames.
        state: the last trained adapter; None before the first round.
    """
    return client_layout(
        adapter_plan(opened, state, lora_rank),
        profile,
        framed,
        travels=opened.strategy.travels,
        beside=lambda layout: {
            name: shape for part in opened.parts for name, shape in part.layout_beside(layout).items()
        },
    )
