"""The layout of a client's update under a federation's plan. Pure."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile


def layout_of(opened: OpenedPlan, profile: Profile, pack_selected: Collection[str] | None) -> Layout:
    """Return the layout of a client's update, {} while a federation with alignment lacks the client's pack.

    Args:
        pack_selected: (block, role)s that the client's pack selects; None without a pack.
    """
    plan, strategy = opened.plan, opened.strategy
    if plan.alignment is not None and pack_selected is None:
        return {}
    return client_layout(
        plan.adapter, profile, pack_selected, travels=strategy.travels, beside=strategy.beside
    )
