"""The adapter and the layout of a client in a round, from its plan and profile alone. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection

from client_agent.adapters.ranks import rank_of
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.strategies.base import State
from schemas.maths.adapter import Layout, prior_layout
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import AdapterPlan


def adapter_plan(opened: OpenedBrief, state: State | None, lora_rank: int | None) -> AdapterPlan:
    """Return the plan's adapter; with mixed ranks of the rank of `state`, or of a client's first one.

    `lora_rank` is the silo's first rank; None = the plan's.
    """
    plan, least = opened.brief.adapter, opened.traits.least_rank
    if least is None:
        return plan
    first = min(plan.rank, max(least, lora_rank or plan.rank))
    return plan.model_copy(update={"rank": rank_of(state) if state is not None else first})


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
        beside=prior_layout if opened.traits.importance is not None else lambda _: {},
    )
